// One number a run, for tests/rdma/bench.py, which interleaves them with those of perftest:
//
//   rdma_bench stream MIB
//       MiB/s of frames of 1 MiB, one way, two threads
//   rdma_bench latency TRIPS
//       us, half the round trip of a frame of 64 bytes, two threads, median
//   rdma_bench pushpull rdma|zmq MB
//       processor seconds of the whole machine per GB, and MB/s, pushed and pulled through client
//       and shard; a request is 10,000 rows of 16 floats
//
// The machine's processor time (/proc/stat) and not the process's: a software device works in the
// kernel's own threads and interrupts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/process.h"
#include "client/client.h"
#include "rdma/rdma_transport.h"
#include "tools/bench/endpoints.h"
#include "tools/bench/lone_shard.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::unique_ptr<transport::Transport> NewRdma(const std::shared_ptr<rdma::RdmaContext>& context) {
  rdma::RdmaOptions options;
  options.context = context;
  auto made = rdma::NewRdmaTransport(options);
  TANDEM_CHECK_OK(made.status());
  return *std::move(made);
}

std::shared_ptr<rdma::RdmaContext> Context() {
  auto context = rdma::RdmaContext::New();
  TANDEM_CHECK_OK(context.status());
  return *context;
}

// A thread that answers each frame, or, of a stream, the last of each `every`.
class Answerer {
 public:
  Answerer(std::unique_ptr<transport::Transport> transport, int every)
      : transport_(std::move(transport)), address_(transport_->address()), every_(every) {
    thread_ = std::thread([this] { Loop(); });
  }
  ~Answerer() { thread_.join(); }  // when its peer has closed
  const std::string& address() const { return address_; }

 private:
  void Loop() {
    int count = 0;
    for (std::vector<transport::TransportEvent> events;; events.clear()) {
      transport_->Poll(absl::InfiniteDuration(), &events);
      for (transport::TransportEvent& event : events) {
        if (event.kind == transport::TransportEvent::Kind::kPeerClosed) return;
        TANDEM_CHECK(event.kind == transport::TransportEvent::Kind::kFrame);
        if (++count % every_ != 0) continue;
        if (every_ > 1) event.frame.frame.part[2] = Buffer();
        TANDEM_CHECK_OK(
            transport_->Send(event.peer, every_ > 1 ? Empty() : std::move(event.frame.frame)));
      }
    }
  }
  Frame Empty() {
    FrameHeader header;
    header.kind = FrameKind::kSegment;
    return EncodeDataFrame(*transport_, header, {}, Buffer(), Buffer());
  }

  const std::unique_ptr<transport::Transport> transport_;
  const std::string address_;
  const int every_;
  std::thread thread_;
};

Frame Segment(transport::Transport& from, const Buffer& values) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  return EncodeDataFrame(from, header, {}, Buffer(), values);
}

void AwaitFrame(transport::Transport& at, std::vector<transport::TransportEvent>* events) {
  for (events->clear(); events->empty();) at.Poll(absl::InfiniteDuration(), events);
  for (const transport::TransportEvent& event : *events) {
    TANDEM_CHECK(event.kind == transport::TransportEvent::Kind::kFrame);
  }
}

void Stream(int mib) {
  constexpr int kBatch = 8;
  const auto context = Context();
  Answerer there(NewRdma(context), kBatch);
  const auto here = NewRdma(context);
  const transport::PeerId peer = here->Connect(there.address()).value();
  Buffer values = here->Alloc(1 << 20);
  std::memset(values.mutable_data(), 7, values.size());
  std::vector<transport::TransportEvent> events;
  // Two batches under way, so that nobody waits for the other's answer.
  const auto batch = [&] {
    for (int i = 0; i < kBatch; ++i) TANDEM_CHECK_OK(here->Send(peer, Segment(*here, values)));
  };
  for (int i = 0; i < 2; ++i) {
    batch();
    AwaitFrame(*here, &events);
  }
  const int batches = std::max(mib / kBatch, 3);
  const auto start = Clock::now();
  batch();
  for (int i = 1; i < batches; ++i) {
    batch();
    AwaitFrame(*here, &events);
  }
  AwaitFrame(*here, &events);
  std::printf("%.2f\n", batches * kBatch / SecondsSince(start));
  here->Close(peer);
}

void Latency(int trips) {
  const auto context = Context();
  Answerer there(NewRdma(context), 1);
  const auto here = NewRdma(context);
  const transport::PeerId peer = here->Connect(there.address()).value();
  Buffer values = here->Alloc(64);
  std::memset(values.mutable_data(), 7, values.size());
  std::vector<transport::TransportEvent> events;
  std::vector<double> all;
  for (int i = 0; i < trips; ++i) {
    const auto start = Clock::now();
    TANDEM_CHECK_OK(here->Send(peer, Segment(*here, values)));
    AwaitFrame(*here, &events);
    all.push_back(SecondsSince(start) * 1e6 / 2);
  }
  std::nth_element(all.begin(), all.begin() + trips / 2, all.end());
  std::printf("%.2f\n", all[static_cast<size_t>(trips / 2)]);
  here->Close(peer);
}

// Of all processors since the start: user, nice, system, irq and softirq, in seconds.
double MachineSeconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user, nice, system, idle, wait, irq, softirq;
  TANDEM_CHECK(stat >> cpu >> user >> nice >> system >> idle >> wait >> irq >> softirq);
  return (user + nice + system + irq + softirq) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

void PushPull(const std::string& transport, int megabytes) {
  constexpr int kDim = 16;
  constexpr size_t kKeys = 10'000;
  const auto context = transport == "rdma" ? Context() : nullptr;
  const auto endpoint = [&](EndpointId self) {
    return context != nullptr ? NewRdma(context) : bench::NewZmqEndpoint(self);
  };
  const job::ResolvedJob plan = bench::LoneShardPlan(
      absl::StrCat("table { name: \"ids\" dim: ", kDim,
                   " expected_rows: 100000 optimizer { kind: SGD learning_rate: 0.01 } }\n"),
      "kind: BSP", 1);
  bench::LoneShard shard(plan, endpoint(EndpointId::Shard(0, 0)));
  client::Client::Options options;
  options.incarnation = 2;
  const auto client = client::Client::New(plan, endpoint(EndpointId::Worker(0)), options).value();
  TANDEM_CHECK_OK(client->SetView(shard.view()));
  std::vector<uint64_t> ids(kKeys);
  for (size_t i = 0; i < kKeys; ++i) ids[i] = HashCombine(1, i);
  std::vector<float> rows(kKeys * kDim), gradients(kKeys * kDim, 0.5f);
  int64_t step = 0;
  const auto round = [&] {
    const client::TableKeys keys = {0, ids};
    const absl::Span<float> into = absl::MakeSpan(rows);
    TANDEM_CHECK_OK(
        client->Pull(0, step, {&keys, 1}, {&into, 1}, client::Client::Ids::kUnique).status());
    const absl::Span<const float> from = gradients;
    TANDEM_CHECK_OK(
        client->Push(0, step++, 2, {&keys, 1}, {&from, 1}, client::Client::Ids::kUnique).status());
  };
  for (int i = 0; i < 3; ++i) round();
  const double per_round = 2.0 * kKeys * (kDim * sizeof(float) + sizeof(uint64_t)) / 1e6;
  const int rounds = std::max(static_cast<int>(megabytes / per_round), 3);
  const double before = MachineSeconds();
  const auto start = Clock::now();
  for (int i = 0; i < rounds; ++i) round();
  const double wall = SecondsSince(start), used = MachineSeconds() - before;
  std::printf("%.3f %.2f\n", used / (rounds * per_round / 1e3), rounds * per_round / wall);
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  int number = 0;
  if (argc < 3 || !absl::SimpleAtoi(argv[argc - 1], &number) || number < 1) {
    std::fprintf(stderr, "rdma_bench: see the top of the source\n");
    return 2;
  }
  SetUpProcess();
  if (what == "stream") Stream(number);
  if (what == "latency") Latency(number);
  if (what == "pushpull" && argc == 4) PushPull(argv[2], number);
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
