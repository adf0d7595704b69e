#include "tests/cuda/gpu_checks.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_reduce.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/gpu_data.h"
#include "tests/cuda/nccl_allreduce.h"
#include "tests/cuda/processes.h"
#include "tests/cuda/thread_peers.h"

namespace tandem {
namespace {

using Code = collectives::DeviceStatus::Code;

constexpr std::chrono::seconds kLimit{240};

std::string In(const std::string& where, const std::string& what) {
  return what.empty() ? what : where + ": " + what;
}

std::string About(collectives::ReduceOp op, collectives::DataType type, int ranks, size_t count) {
  return std::string(collectives::Name(op)) + " " + collectives::Name(type) + " ranks " +
         std::to_string(ranks) + " count " + std::to_string(count);
}

// A child's body that skips where there is no device.
PeerBody OnDevice(const std::function<std::string(Peer&)>& body) {
  return [body](Peer& peer) {
    std::string why;
    if (!collectives::HaveDevice(&why)) return kSkip + why;
    return Guarded([&] { return body(peer); });
  };
}

// --- The kernel.

struct FoldCase {
  collectives::ReduceOp op;
  collectives::DataType type;
  int inputs;
  size_t count;
  size_t shift;   // elements by which all vectors are off 16 bytes
  size_t apart;   // and the first input by so many more
  bool in_place;  // the first output is the first input
};

// A way to run a fold over host vectors: outputs as they come out.
using FoldRunner = std::function<std::vector<Bytes>(const FoldCase&, const std::vector<Bytes>&)>;

constexpr double kScalar = 0.375;
constexpr int kOutputs = 2;

std::string CheckFold(const FoldCase& c, Generator& random, const FoldRunner& run) {
  std::vector<Bytes> in;
  for (int k = 0; k < c.inputs; ++k) in.push_back(RandomVector(c.type, c.count, random));
  const Bytes want = ReferenceFold(c.op, c.type, kScalar, in);
  for (const Bytes& got : run(c, in)) {
    const std::string wrong = Difference(c.type, got, want);
    if (!wrong.empty()) {
      return In(About(c.op, c.type, c.inputs, c.count) + " shift " + std::to_string(c.shift) + "+" +
                    std::to_string(c.apart) + (c.in_place ? " in place" : ""),
                wrong);
    }
  }
  return "";
}

std::string CheckFolds(const GpuCheckOptions& options, const FoldRunner& run) {
  Generator random(options.seed);
  const std::vector<size_t> counts = options.small
                                         ? std::vector<size_t>{0, 1, 17, 1000}
                                         : std::vector<size_t>{0, 1, 15, 16, 17, 1000, 40003};
  for (const collectives::ReduceOp op : collectives::kReduceOps) {
    for (const collectives::DataType type : collectives::kDataTypes) {
      if (!collectives::Defined(op, type)) continue;
      for (const int inputs : {1, 2, 3, 8}) {
        for (const size_t count : counts) {
          const FoldCase c = {
              op, type, inputs, count, random() % 16, random() % 3, random() % 2 == 0};
          if (std::string wrong = CheckFold(c, random, run); !wrong.empty()) return wrong;
        }
      }
    }
  }
  return "";
}

// Vectors placed in one block of memory as a case wants them, and the fold over them.
struct Placement {
  size_t bytes = 0;  // of the block
  std::vector<size_t> in, out;

  explicit Placement(const FoldCase& c) {
    const size_t size = collectives::SizeOf(c.type);
    const auto place = [&](size_t shift) {
      const size_t at = bytes + shift * size;
      bytes = (at + c.count * size + 63) / 64 * 64;
      return at;
    };
    for (int k = 0; k < c.inputs; ++k) in.push_back(place(c.shift + (k == 0 ? c.apart : 0)));
    for (int o = 0; o < kOutputs; ++o) out.push_back(o == 0 && c.in_place ? in[0] : place(c.shift));
  }

  collectives::DeviceFold Fold(const FoldCase& c, uint8_t* block) const {
    collectives::DeviceFold fold;
    fold.op = c.op;
    fold.type = c.type;
    fold.count = c.count;
    fold.scalar = kScalar;
    fold.inputs = c.inputs;
    fold.outputs = kOutputs;
    for (size_t k = 0; k < in.size(); ++k) fold.in[k] = block + in[k];
    for (size_t o = 0; o < out.size(); ++o) fold.out[o] = block + out[o];
    return fold;
  }
};

std::string HostFold(const GpuCheckOptions& options) {
  return CheckFolds(options, [](const FoldCase& c, const std::vector<Bytes>& in) {
    const Placement place(c);
    std::vector<uint8_t> memory(place.bytes + 64, 0xa5);
    uint8_t* const block = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    for (size_t k = 0; k < in.size(); ++k)
      std::copy(in[k].begin(), in[k].end(), block + place.in[k]);
    Require(collectives::FoldOnHost(place.Fold(c, block), 3));
    std::vector<Bytes> out;
    for (const size_t at : place.out) out.emplace_back(block + at, block + at + in[0].size());
    return out;
  });
}

std::string DeviceFoldCheck(const GpuCheckOptions& options) {
  return RunProcesses(
      1, kLimit, OnDevice([&](Peer&) {
        const Stream stream;
        return CheckFolds(options, [&](const FoldCase& c, const std::vector<Bytes>& in) {
          const Placement place(c);
          const DeviceBuffer memory(place.bytes);
          for (size_t k = 0; k < in.size(); ++k) stream.Up(memory.data() + place.in[k], in[k]);
          Require(collectives::LaunchFold(place.Fold(c, memory.data()), stream.get()));
          std::vector<Bytes> out;
          for (const size_t at : place.out)
            out.push_back(stream.Down(memory.data() + at, in[0].size()));
          return out;
        });
      }));
}

std::string FoldRefuses(const GpuCheckOptions&) {
  float data[4] = {};
  collectives::DeviceFold fold;
  fold.inputs = fold.outputs = 1;
  fold.in[0] = fold.out[0] = data;
  fold.count = 1;
  const auto refused = [](const collectives::DeviceFold& f) {
    return collectives::FoldOnHost(f, 1).code() == Code::kInvalidArgument;
  };
  if (refused(fold)) return "refuses what is right";
  collectives::DeviceFold bad = fold;
  bad.in[0] = reinterpret_cast<const char*>(data) + 1;
  if (!refused(bad)) return "takes a pointer that is not a multiple of the element size";
  bad = fold;
  bad.inputs = collectives::kMaxFoldVectors + 1;
  if (!refused(bad)) return "takes too many inputs";
  bad = fold;
  bad.op = collectives::ReduceOp::kBitOr;
  return refused(bad) ? "" : "takes bit_or of f32";
}

// --- All-reduce between processes.

struct Call {
  collectives::ReduceOp op;
  collectives::DataType type;
  size_t count;
  bool in_place;
  size_t shift;  // elements, per rank different
};

// The same on every rank: all draw from the same seed.
Call RandomCall(Generator& random, bool small) {
  static constexpr size_t kCounts[] = {0, 1, 5, 63, 64, 65, 1000, 4099, 100003};
  Call call;
  do {
    call.op = collectives::kReduceOps[random() % collectives::kReduceOpCount];
    call.type = collectives::kDataTypes[random() % collectives::kDataTypeCount];
  } while (!collectives::Defined(call.op, call.type));
  call.count = kCounts[random() % (small ? 7 : 9)];
  call.in_place = random() % 2 == 0;
  call.shift = random() % 4;
  return call;
}

double ScalarOf(collectives::ReduceOp op, int ranks) {
  return op == collectives::ReduceOp::kAverage ? 1.0 / ranks : kScalar;
}

collectives::DeviceReduction Reduction(const Call& call, const void* in, void* out) {
  collectives::DeviceReduction what;
  what.op = call.op;
  what.type = call.type;
  what.in = in;
  what.out = out;
  what.count = call.count;
  what.scalar = kScalar;
  return what;
}

std::vector<Bytes> AllContributions(const Call& call, int ranks, Generator& random) {
  std::vector<Bytes> all;
  for (int r = 0; r < ranks; ++r) all.push_back(RandomVector(call.type, call.count, random));
  return all;
}

// One call with buffers of its own; small allocations share pages of the device.
std::string CheckCall(collectives::DeviceAllReduce& all_reduce, const Stream& stream,
                      const Call& call, int rank, int ranks, Generator& random) {
  const std::vector<Bytes> all = AllContributions(call, ranks, random);
  const Bytes& mine = all[static_cast<size_t>(rank)];
  const size_t shift = call.shift * static_cast<size_t>(rank) * collectives::SizeOf(call.type);
  const DeviceBuffer in(mine.size() + shift), out(mine.size() + shift);
  uint8_t* const from = in.data() + shift;
  uint8_t* const to = call.in_place ? from : out.data() + shift;
  stream.Up(from, mine);
  Require(all_reduce.Run(Reduction(call, from, to), stream.get()));
  const Bytes got = stream.Down(to, mine.size());
  const Bytes want = ReferenceFold(call.op, call.type, ScalarOf(call.op, ranks), all);
  std::string wrong = Difference(call.type, got, want);
  if (wrong.empty() && !call.in_place) {
    wrong = In("input changed", Difference(call.type, stream.Down(from, mine.size()), mine));
  }
  return In(About(call.op, call.type, ranks, call.count) + (call.in_place ? " in place" : ""),
            wrong);
}

using Factory = std::function<collectives::DeviceStatus(
    Peer&, const collectives::IpcOptions&, std::unique_ptr<collectives::DeviceAllReduce>*)>;

collectives::DeviceStatus NewIpc(Peer& peer, const collectives::IpcOptions& options,
                                 std::unique_ptr<collectives::DeviceAllReduce>* out) {
  return collectives::NewIpcAllReduce(peer.rank(), peer.ranks(), peer.all_gather(), options, out);
}

// Buffers are freed and come again at the same addresses between calls, on every rank at once.
std::string IpcCalls(const GpuCheckOptions& options, bool one_kernel_per_device) {
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string wrong =
        RunProcesses(ranks, kLimit, OnDevice([&](Peer& peer) {
                       collectives::IpcOptions ipc;
                       ipc.one_kernel_per_device = one_kernel_per_device;
                       std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
                       Require(NewIpc(peer, ipc, &all_reduce));
                       const Stream stream;
                       Generator random(options.seed + static_cast<unsigned>(peer.ranks()));
                       for (int n = 0; n < (options.small ? 8 : 40); ++n) {
                         const Call call = RandomCall(random, options.small);
                         std::string error = CheckCall(*all_reduce, stream, call, peer.rank(),
                                                       peer.ranks(), random);
                         if (!error.empty()) return In("call " + std::to_string(n), error);
                         Require(peer.Barrier());
                       }
                       return std::string();
                     }));
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string IpcAgrees(const GpuCheckOptions& options) { return IpcCalls(options, true); }
std::string IpcBlocksAgree(const GpuCheckOptions& options) { return IpcCalls(options, false); }

// Keeps a stream busy for some milliseconds: copies within a large buffer.
void Delay(const Stream& stream, const DeviceBuffer& large, int copies) {
  const size_t half = large.bytes() / 2;
  for (int i = 0; i < copies; ++i) {
    TANDEM_CUDA_REQUIRE(cudaMemcpyAsync(large.data() + (i % 2 == 0 ? half : 0),
                                        large.data() + (i % 2 == 0 ? 0 : half), half,
                                        cudaMemcpyDeviceToDevice, stream.get()));
  }
}

// Rounds of: input written late in the stream, all-reduce, input overwritten at once, without the
// host ever waiting. Rank by rank another stream is the slow one.
std::string CheckOrder(collectives::DeviceAllReduce& all_reduce, int rank, int ranks,
                       const GpuCheckOptions& options) {
  constexpr size_t kRounds = 12;
  const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32,
                     options.small ? 5000u : 300007u, true, 0};
  Generator random(options.seed);
  const Stream stream;
  const DeviceBuffer large((options.small ? size_t{1} : size_t{64}) << 20);
  std::vector<std::vector<Bytes>> all;
  std::vector<DeviceBuffer> inputs, results;
  const size_t bytes = call.count * collectives::SizeOf(call.type);
  for (size_t n = 0; n < kRounds; ++n) {
    all.push_back(AllContributions(call, ranks, random));
    inputs.emplace_back(bytes);
    results.emplace_back(bytes);
    stream.Up(inputs[n].data(), all[n][static_cast<size_t>(rank)]);
  }
  const DeviceBuffer data(bytes);
  stream.Wait();
  for (size_t n = 0; n < kRounds; ++n) {
    if (n % static_cast<size_t>(ranks) == static_cast<size_t>(rank)) Delay(stream, large, 20);
    TANDEM_CUDA_REQUIRE(cudaMemcpyAsync(data.data(), inputs[n].data(), bytes,
                                        cudaMemcpyDeviceToDevice, stream.get()));
    Require(all_reduce.Run(Reduction(call, data.data(), data.data()), stream.get()));
    TANDEM_CUDA_REQUIRE(cudaMemcpyAsync(results[n].data(), data.data(), bytes,
                                        cudaMemcpyDeviceToDevice, stream.get()));
    TANDEM_CUDA_REQUIRE(cudaMemsetAsync(data.data(), 0xff, bytes, stream.get()));
  }
  for (size_t n = 0; n < kRounds; ++n) {
    const Bytes want = ReferenceFold(call.op, call.type, 1, all[n]);
    const std::string wrong = Difference(call.type, stream.Down(results[n].data(), bytes), want);
    if (!wrong.empty()) return In("round " + std::to_string(n), wrong);
  }
  return "";
}

std::string IpcOrder(const GpuCheckOptions& options) {
  for (const bool one_kernel : {true, false}) {
    for (const int ranks : {2, 4}) {
      const std::string wrong =
          RunProcesses(ranks, kLimit, OnDevice([&](Peer& peer) {
                         collectives::IpcOptions ipc;
                         ipc.one_kernel_per_device = one_kernel;
                         std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
                         Require(NewIpc(peer, ipc, &all_reduce));
                         return CheckOrder(*all_reduce, peer.rank(), peer.ranks(), options);
                       }));
      if (!wrong.empty()) return wrong;
    }
  }
  return "";
}

std::string Mentions(const collectives::DeviceStatus& status, Code code,
                     const std::vector<std::string>& words) {
  if (status.code() != code) {
    return "code " + std::to_string(static_cast<int>(status.code())) + ", expected " +
           std::to_string(static_cast<int>(code)) + ": " + status.message();
  }
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string::npos) {
      return "\"" + status.message() + "\" does not say " + word;
    }
  }
  return "";
}

// Ranks that do not agree fail all, by name, and stay failed.
std::string IpcMismatch(const GpuCheckOptions&) {
  return RunProcesses(
      3, kLimit, OnDevice([](Peer& peer) {
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        Require(NewIpc(peer, collectives::IpcOptions(), &all_reduce));
        const Stream stream;
        const DeviceBuffer data(4096);
        const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32,
                           peer.rank() == 1 ? 10u : 20u, true, 0};
        const collectives::DeviceReduction what = Reduction(call, data.data(), data.data());
        const collectives::DeviceStatus first = all_reduce->Run(what, stream.get());
        if (first.ok()) return std::string("ranks that disagree succeed");
        // Who comes second may hear of it from the other instead.
        const bool heard = first.code() == Code::kPeer;
        std::string wrong = heard
                                ? Mentions(first, Code::kPeer, {"rank", "20 f32", "10 f32"})
                                : Mentions(first, Code::kMismatch, {"rank 1", "20 f32", "10 f32"});
        if (wrong.empty() && all_reduce->Run(what, stream.get()).code() != first.code()) {
          wrong = "works again after a failure";
        }
        stream.Wait();
        Require(peer.Barrier());
        return wrong;
      }));
}

// A rank that does not come is named at the deadline.
std::string IpcDeadline(const GpuCheckOptions&) {
  return RunProcesses(
      3, kLimit, OnDevice([](Peer& peer) {
        collectives::IpcOptions ipc;
        ipc.deadline = std::chrono::milliseconds(300);
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        Require(NewIpc(peer, ipc, &all_reduce));
        const Stream stream;
        const DeviceBuffer data(4096);
        const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32, 20, true, 0};
        std::string wrong;
        if (peer.rank() != 1) {
          const collectives::DeviceStatus status =
              all_reduce->Run(Reduction(call, data.data(), data.data()), stream.get());
          wrong = status.code() == Code::kPeer
                      ? Mentions(status, Code::kPeer, {"rank 1 has not entered"})
                      : Mentions(status, Code::kDeadline, {"rank 1 has not entered all-reduce #1"});
          if (wrong.empty() && status.rank() != 1)
            wrong = "blames rank " + std::to_string(status.rank());
        }
        Require(peer.Barrier());
        return wrong;
      }));
}

// Whoever learns of a death elsewhere ends the wait through still_waiting.
std::string IpcToldOfDeath(const GpuCheckOptions&) {
  return RunProcesses(
      2, kLimit, OnDevice([](Peer& peer) {
        collectives::IpcOptions ipc;
        ipc.still_waiting = [](int) {
          return collectives::DeviceStatus(Code::kPeer, "the scheduler says so", 1);
        };
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        Require(NewIpc(peer, ipc, &all_reduce));
        const Stream stream;
        const DeviceBuffer data(4096);
        const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32, 20, true, 0};
        std::string wrong;
        if (peer.rank() == 0) {
          wrong = Mentions(all_reduce->Run(Reduction(call, data.data(), data.data()), stream.get()),
                           Code::kPeer, {"the scheduler says so"});
        }
        Require(peer.Barrier());
        return wrong;
      }));
}

std::string IpcRefusesHostMemory(const GpuCheckOptions&) {
  return RunProcesses(
      1, kLimit, OnDevice([](Peer& peer) {
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        Require(NewIpc(peer, collectives::IpcOptions(), &all_reduce));
        const Stream stream;
        std::vector<float> host(16);
        const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32, host.size(),
                           true, 0};
        return Mentions(all_reduce->Run(Reduction(call, host.data(), host.data()), stream.get()),
                        Code::kInvalidArgument, {"device memory"});
      }));
}

// --- All-reduce through the host.

// A thread a rank, all on one device.
std::string RunThreads(int ranks, const std::function<std::string(int)>& body) {
  std::vector<std::string> said(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back(
        [&, r] { said[static_cast<size_t>(r)] = Guarded([&] { return body(r); }); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : said) {
    if (!one.empty()) return one;
  }
  return "";
}

std::string StagedAgrees(const GpuCheckOptions& options) {
  return RunProcesses(
      1, kLimit, OnDevice([&](Peer&) {
        for (const int ranks : {1, 2, 3}) {
          for (const int in_flight : {2, 3, 5}) {
            ThreadPeers peers(ranks);
            const std::string wrong = RunThreads(ranks, [&](int rank) {
              collectives::StagedOptions staged;
              staged.segment_bytes = options.small ? 256 : 4096;  // many to a vector
              staged.segments_in_flight = in_flight;
              std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
              Require(collectives::NewStagedAllReduce(peers.Of(rank), staged, &all_reduce));
              const Stream stream;
              Generator random(options.seed + static_cast<unsigned>(in_flight));
              for (int n = 0; n < (options.small ? 5 : 25); ++n) {
                const Call call = RandomCall(random, options.small);
                std::string error = CheckCall(*all_reduce, stream, call, rank, ranks, random);
                if (!error.empty()) return In("call " + std::to_string(n), error);
              }
              return std::string();
            });
            if (!wrong.empty()) return In(std::to_string(in_flight) + " in flight", wrong);
          }
        }
        return std::string();
      }));
}

std::string StagedOrder(const GpuCheckOptions& options) {
  return RunProcesses(
      1, kLimit, OnDevice([&](Peer&) {
        ThreadPeers peers(2);
        return RunThreads(2, [&](int rank) {
          collectives::StagedOptions staged;
          staged.segment_bytes = options.small ? 1024 : size_t{64} << 10;
          std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
          Require(collectives::NewStagedAllReduce(peers.Of(rank), staged, &all_reduce));
          return CheckOrder(*all_reduce, rank, 2, options);
        });
      }));
}

// Two hosts of two ranks: within both and across them through the host, each on its own.
std::string TwoLevelsSum(const GpuCheckOptions& options) {
  return RunProcesses(
      1, kLimit, OnDevice([&](Peer&) {
        constexpr int kRanks = 4, kHosts = 2, kHere = 2;
        ThreadPeers hosts[kHosts] = {ThreadPeers(kHere), ThreadPeers(kHere)};
        ThreadPeers leaders(kHosts);
        return RunThreads(kRanks, [&](int rank) {
          const int host = rank / kHere;
          std::unique_ptr<collectives::DeviceAllReduce> within, across;
          Require(collectives::NewStagedAllReduce(hosts[host].Of(rank % kHere),
                                                  collectives::StagedOptions(), &within));
          if (rank % kHere == 0) {
            Require(collectives::NewStagedAllReduce(leaders.Of(host), collectives::StagedOptions(),
                                                    &across));
          }
          const auto sum = collectives::NewTwoLevelSum(std::move(within), std::move(across));
          const size_t count = options.small ? 100 : 100'003;
          std::vector<float> values(count);
          for (size_t i = 0; i < count; ++i) {
            values[i] = static_cast<float>((i % 100 + 1) << rank);
          }
          const DeviceBuffer data(count * sizeof(float));
          TANDEM_CUDA_REQUIRE(
              cudaMemcpy(data.data(), values.data(), data.bytes(), cudaMemcpyHostToDevice));
          const Stream stream;
          const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32, count, true,
                             0};
          Require(sum->Run(Reduction(call, data.data(), data.data()), stream.get()));
          TANDEM_CUDA_REQUIRE(cudaStreamSynchronize(stream.get()));
          TANDEM_CUDA_REQUIRE(
              cudaMemcpy(values.data(), data.data(), data.bytes(), cudaMemcpyDeviceToHost));
          for (size_t i = 0; i < count; ++i) {
            if (values[i] == static_cast<float>((i % 100 + 1) * 15)) continue;
            return "rank " + std::to_string(rank) + ": element " + std::to_string(i) + " is " +
                   std::to_string(values[i]);
          }
          const Call most = {collectives::ReduceOp::kMax, collectives::DataType::kF32, count, true,
                             0};
          return Mentions(sum->Run(Reduction(most, data.data(), data.data()), stream.get()),
                          Code::kUnsupported, {"supports sum only"});
        });
      }));
}

// Run returns the status of the host's all-reduce, also later. Run leaves no segment with it.
std::string StagedFails(const GpuCheckOptions&) {
  return RunProcesses(
      1, kLimit, OnDevice([](Peer&) {
        ThreadPeers peers(1);
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        Require(collectives::NewStagedAllReduce(peers.Of(0), collectives::StagedOptions(),
                                                &all_reduce));
        const Stream stream;
        const DeviceBuffer data(4096);
        const Call call = {collectives::ReduceOp::kSum, collectives::DataType::kF32, 1000, true, 0};
        const collectives::DeviceReduction what = Reduction(call, data.data(), data.data());
        Require(all_reduce->Run(what, stream.get()));
        if (peers.Abandoned(0)) return std::string("gives up segments that have ended well");
        peers.Break(0, collectives::DeviceStatus(Code::kPeer, "rank 7 is gone", 7));
        const collectives::DeviceStatus status = all_reduce->Run(what, stream.get());
        if (status.rank() != 7) return std::string("does not name rank 7");
        if (!peers.Abandoned(0)) return std::string("leaves segments with the host");
        peers.Break(0, collectives::DeviceStatus());
        return Mentions(all_reduce->Run(what, stream.get()), Code::kPeer, {"rank 7 is gone"});
      }));
}

std::string NcclAgrees(const GpuCheckOptions& options) {
  return RunProcesses(
      1, kLimit, OnDevice([&](Peer& peer) {
        std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
        const collectives::DeviceStatus made =
            NewNcclAllReduce(peer.rank(), peer.ranks(), peer.all_gather(), &all_reduce);
        if (made.code() == Code::kUnsupported) return kSkip + made.message();
        Require(made);
        const Stream stream;
        Generator random(options.seed);
        for (const collectives::DataType type : collectives::kDataTypes) {
          for (const collectives::ReduceOp op :
               {collectives::ReduceOp::kSum, collectives::ReduceOp::kMax,
                collectives::ReduceOp::kPreMulSum}) {
            if (!collectives::Defined(op, type)) continue;
            std::string wrong =
                CheckCall(*all_reduce, stream, {op, type, 1000, false, 0}, 0, 1, random);
            if (!wrong.empty()) return wrong;
          }
        }
        const DeviceBuffer data(64);
        const Call call = {collectives::ReduceOp::kLogicalOr, collectives::DataType::kI32, 4, true,
                           0};
        return Mentions(all_reduce->Run(Reduction(call, data.data(), data.data()), stream.get()),
                        Code::kUnsupported, {"logical_or"});
      }));
}

}  // namespace

const std::vector<GpuCheck>& GpuChecks() {
  static const std::vector<GpuCheck> checks = {
      {"host_fold", "the kernel's code run on the host: every op, type and alignment", false,
       HostFold},
      {"fold_refuses", "wrong pointers, counts and ops are refused", false, FoldRefuses},
      {"device_fold", "the kernel on the device gives the bits of the host", true, DeviceFoldCheck},
      {"ipc", "1 to 4 processes on one device, random calls, equal to the fold to the bit", true,
       IpcAgrees},
      {"ipc_blocks", "the same with a kernel and a block a rank", true, IpcBlocksAgree},
      {"ipc_order", "ordered with the caller's stream, without the host waiting", true, IpcOrder},
      {"ipc_mismatch", "ranks that disagree all fail and name both", true, IpcMismatch},
      {"ipc_deadline", "a rank that does not come is named at the deadline", true, IpcDeadline},
      {"ipc_told", "a wait ends when the caller knows better", true, IpcToldOfDeath},
      {"ipc_host_memory", "host memory is refused", true, IpcRefusesHostMemory},
      {"staged", "1 to 3 ranks through the host, small segments, random calls", true, StagedAgrees},
      {"staged_order", "ordered with the caller's stream", true, StagedOrder},
      {"staged_fails", "an error of the host's all-reduce stays", true, StagedFails},
      {"two_levels", "within hosts, then across them", true, TwoLevelsSum},
      {"nccl", "NCCL behind the same interface, one rank", true, NcclAgrees}};
  return checks;
}

}  // namespace tandem
