#include "tests/bench/allreduce_bench.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "collectives/legacy/cost.h"
#include "collectives/legacy/engine.h"
#include "transport/in_process.h"
#include "transport/transport.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

// An engine and its transport: the smallest shell that works. One thread.
class BenchRank {
 public:
  BenchRank(int rank, std::unique_ptr<Transport> transport, int ranks)
      : transport_(std::move(transport)),
        peers_(static_cast<size_t>(ranks)),
        engine_(rank, ranks, *transport_) {}

  const std::string& address() const { return transport_->address(); }

  // Every rank connects to every other and sends on its own connections.
  absl::Status Connect(int rank, const std::string& address) {
    TANDEM_ASSIGN_OR_RETURN(peers_[rank], transport_->Connect(address));
    return absl::OkStatus();
  }

  absl::Status AllReduce(uint64_t number, const Schedule& schedule, absl::Span<float> data,
                         absl::Duration deadline) {
    TANDEM_RETURN_IF_ERROR(
        engine_.Start(number, &schedule, data, absl::Now(), deadline, &effects_));
    while (true) {
      TANDEM_RETURN_IF_ERROR(SendAll());
      if (engine_.running() == 0 && effects_.sends.empty()) break;
      TANDEM_RETURN_IF_ERROR(Serve(absl::Milliseconds(50)));
    }
    const absl::Status status = effects_.completions.front().status;
    effects_.completions.clear();
    return status;
  }

  // What has happened on the transport, for at most `timeout`.
  absl::Status Serve(absl::Duration timeout) {
    events_.clear();
    transport_->Poll(timeout, &events_);
    const absl::Time now = absl::Now();
    for (const TransportEvent& event : events_) TANDEM_RETURN_IF_ERROR(Handle(event, now));
    events_.clear();
    engine_.OnTick(now, &effects_);
    return absl::OkStatus();
  }

 private:
  // Keeps what the transport has no room for yet.
  absl::Status SendAll() {
    size_t kept = 0;
    for (OutgoingSegment& out : effects_.sends) {
      const absl::Status status = transport_->Send(peers_[out.to_rank], out.frame);
      if (absl::IsResourceExhausted(status)) {
        effects_.sends[kept++] = std::move(out);
      } else if (!status.ok()) {
        return status;
      }
    }
    effects_.sends.resize(kept);
    return absl::OkStatus();
  }

  absl::Status Handle(const TransportEvent& event, absl::Time now) {
    switch (event.kind) {
      case TransportEvent::Kind::kFrame:
        return engine_.OnSegment(event.frame.header.sender.index, event.frame, now, &effects_);
      case TransportEvent::Kind::kPeerLost:
      case TransportEvent::Kind::kGarbage:
        return event.why;
      case TransportEvent::Kind::kPeerClosed:
        return absl::UnavailableError("a rank has left");
      case TransportEvent::Kind::kWritable:
        return absl::OkStatus();
    }
    return absl::InternalError("unknown event");
  }

  std::unique_ptr<Transport> transport_;
  std::vector<PeerId> peers_;  // by rank
  CollectiveEngine engine_;
  CollectiveEffects effects_;
  std::vector<TransportEvent> events_;
};

using Group = std::vector<std::unique_ptr<BenchRank>>;

absl::StatusOr<Group> NewGroup(const AllReduceBenchOptions& options) {
  const InProcessNetwork network;
  const auto context = std::make_shared<ZmqContext>(/*io_threads=*/1);
  Group group;
  for (int rank = 0; rank < options.ranks; ++rank) {
    ZmqOptions zmq;
    zmq.context = context;
    zmq.self = EndpointId::Worker(rank);
    auto transport = options.transport == "inproc" ? network.NewTransport({})
                     : options.transport == "zmq"
                         ? NewZmqTransport(zmq)
                         : absl::InvalidArgumentError(absl::StrCat("transport '", options.transport,
                                                                   "': want inproc or zmq"));
    if (!transport.ok()) return transport.status();
    group.push_back(std::make_unique<BenchRank>(rank, *std::move(transport), options.ranks));
  }
  for (int a = 0; a < options.ranks; ++a) {
    for (int b = 0; b < options.ranks; ++b) {
      if (a != b) TANDEM_RETURN_IF_ERROR(group[a]->Connect(b, group[b]->address()));
    }
  }
  return group;
}

// Inputs whose sum is exact in any order (small integers times a power of two), and that sum.
struct Problem {
  std::vector<std::vector<float>> input;  // by rank
  std::vector<float> sum;
};

Problem NewProblem(int ranks, int64_t count, uint64_t seed) {
  Random random(seed);
  Problem problem;
  problem.sum.resize(static_cast<size_t>(count));
  for (int rank = 0; rank < ranks; ++rank) {
    auto& input = problem.input.emplace_back(static_cast<size_t>(count));
    for (size_t i = 0; i < input.size(); ++i) {
      input[i] = (static_cast<float>(random.Uniform(2001)) - 1000) * 0x1p-7f;
      problem.sum[i] += input[i];
    }
  }
  return problem;
}

struct Measured {
  absl::Status status;
  std::vector<double> seconds;  // of the measured repetitions
  int64_t wrong = 0;
};

int64_t CountWrong(const std::vector<float>& have, const std::vector<float>& want) {
  int64_t wrong = 0;
  for (size_t i = 0; i < have.size(); ++i) wrong += have[i] != want[i];
  return wrong;
}

// Where ranks meet before each repetition. They serve their transports while they wait, because a
// connection may still have to be made, and frames to be pushed on, for ranks that are behind.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}

  absl::Status WaitForAll(int round, BenchRank& rank) {
    ++arrived_;
    while (arrived_ < int64_t{round + 1} * ranks_) {
      if (broken_) return absl::CancelledError("another rank has failed");
      TANDEM_RETURN_IF_ERROR(rank.Serve(absl::ZeroDuration()));
      std::this_thread::yield();
    }
    return absl::OkStatus();
  }
  void Break() { broken_ = true; }

 private:
  const int ranks_;
  std::atomic<int64_t> arrived_{0};
  std::atomic<bool> broken_{false};
};

// One rank's repetitions of one size. `number` is the first operation's.
absl::Status RunRank(const AllReduceBenchOptions& options, const Problem& problem,
                     const Schedule& schedule, uint64_t number, BenchRank& rank, Meeting& meeting,
                     Measured& measured) {
  const std::vector<float>& input = problem.input[schedule.rank];
  std::vector<float> data(input.size());
  for (int i = 0; i < options.warmup + options.repetitions; ++i) {
    data = input;
    TANDEM_RETURN_IF_ERROR(meeting.WaitForAll(i, rank));
    const absl::Time begin = absl::Now();
    TANDEM_RETURN_IF_ERROR(
        rank.AllReduce(number++, schedule, absl::MakeSpan(data), options.deadline));
    if (i >= options.warmup) {
      measured.seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
    measured.wrong += CountWrong(data, problem.sum);
  }
  return absl::OkStatus();
}

std::vector<Measured> RunSize(const AllReduceBenchOptions& options, AllReduceAlgorithm algorithm,
                              int64_t count, uint64_t number, Group& group) {
  const Problem problem =
      NewProblem(options.ranks, count, options.seed + static_cast<uint64_t>(count));
  const auto schedules = AllReduceSchedules(algorithm, options.ranks, count);
  std::vector<Measured> measured(group.size());
  Meeting meeting(options.ranks);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < group.size(); ++rank) {
    threads.emplace_back([&, rank] {
      measured[rank].status =
          RunRank(options, problem, schedules[rank], number, *group[rank], meeting, measured[rank]);
      if (!measured[rank].status.ok()) meeting.Break();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return measured;
}

// The error to report: not that of a rank which only heard of it.
absl::Status FirstError(const std::vector<Measured>& measured) {
  absl::Status first;
  for (const Measured& m : measured) {
    if (first.ok() || absl::IsCancelled(first)) first = m.status.ok() ? first : m.status;
  }
  return first;
}

absl::Status Report(const AllReduceBenchOptions& options, AllReduceAlgorithm algorithm,
                    int64_t bytes, const std::vector<Measured>& measured, std::ostream& out) {
  std::vector<double> slowest(static_cast<size_t>(options.repetitions));
  int64_t wrong = 0;
  TANDEM_RETURN_IF_ERROR(FirstError(measured));
  for (const Measured& m : measured) {
    for (size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], m.seconds[i]);
    wrong += m.wrong;
  }
  std::sort(slowest.begin(), slowest.end());
  const auto quantile = [&](double q) {
    return slowest[static_cast<size_t>(q * static_cast<double>(slowest.size() - 1) + .5)];
  };
  const double algbw = static_cast<double>(bytes) / quantile(.5) * 1e-9;
  out << absl::StrFormat("%-9s %10d %7d %10.1f %10.1f %10.1f %10.1f %10.3f %10.3f %6d\n",
                         AllReduceAlgorithmName(algorithm), bytes, slowest.size(),
                         slowest.front() * 1e6, quantile(.5) * 1e6, quantile(.99) * 1e6,
                         slowest.back() * 1e6, algbw, algbw * AllReduceBusFactor(options.ranks),
                         wrong)
      << std::flush;
  if (wrong == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(wrong, " wrong elements in ",
                                          AllReduceAlgorithmName(algorithm), " all-reduces of ",
                                          bytes, " bytes"));
}

absl::Status CheckOptions(const AllReduceBenchOptions& options) {
  if (options.ranks >= 1 && options.repetitions >= 1 && options.warmup >= 0 &&
      options.min_bytes >= 4 && options.max_bytes >= options.min_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "all-reduce bench: ", options.ranks, " ranks, ", options.repetitions, " repetitions, ",
      options.warmup, " to warm up, sizes ", options.min_bytes, " to ", options.max_bytes));
}

}  // namespace

absl::Status RunAllReduceBench(const AllReduceBenchOptions& options, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  TANDEM_ASSIGN_OR_RETURN(Group group, NewGroup(options));
  out << absl::StrFormat("all-reduce over %s, %d ranks as threads, %d cores, seed %d\n",
                         options.transport, options.ranks, std::thread::hardware_concurrency(),
                         options.seed)
      << absl::StrFormat("%-9s %10s %7s %10s %10s %10s %10s %10s %10s %6s\n", "algorithm", "bytes",
                         "samples", "min_us", "p50_us", "p99_us", "max_us", "algbw_GB/s",
                         "busbw_GB/s", "wrong");
  uint64_t number = 0;
  for (const AllReduceAlgorithm algorithm : options.algorithms) {
    for (int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4) {
      const int64_t count = bytes / static_cast<int64_t>(sizeof(float));
      const auto measured = RunSize(options, algorithm, count, number, group);
      TANDEM_RETURN_IF_ERROR(Report(options, algorithm, bytes, measured, out));
      number += static_cast<uint64_t>(options.warmup + options.repetitions);
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
