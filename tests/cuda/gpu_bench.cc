#include "tests/cuda/gpu_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_reduce.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/processes.h"
#include "tests/cuda/thread_peers.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
using Samples = std::vector<double>;

constexpr std::chrono::seconds kLimit{240};
constexpr int kInner = 10;  // operations a repetition

double Median(Samples samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

double Spread(const Samples& samples) {
  const auto [least, most] = std::minmax_element(samples.begin(), samples.end());
  return (*most - *least) / Median(samples);
}

// Seconds an operation takes on the device, kInner of them enqueued in a row.
double DeviceSeconds(const Stream& stream, const std::function<void()>& operation) {
  cudaEvent_t begin = nullptr, end = nullptr;
  TANDEM_CUDA_REQUIRE(cudaEventCreate(&begin));
  TANDEM_CUDA_REQUIRE(cudaEventCreate(&end));
  TANDEM_CUDA_REQUIRE(cudaEventRecord(begin, stream.get()));
  for (int i = 0; i < kInner; ++i) operation();
  TANDEM_CUDA_REQUIRE(cudaEventRecord(end, stream.get()));
  TANDEM_CUDA_REQUIRE(cudaEventSynchronize(end));
  float ms = 0;
  TANDEM_CUDA_REQUIRE(cudaEventElapsedTime(&ms, begin, end));
  TANDEM_CUDA_REQUIRE(cudaEventDestroy(begin));
  TANDEM_CUDA_REQUIRE(cudaEventDestroy(end));
  return static_cast<double>(ms) / 1e3 / kInner;
}

void Copy(const Stream& stream, const DeviceBuffer& to, const DeviceBuffer& from) {
  TANDEM_CUDA_REQUIRE(cudaMemcpyAsync(to.data(), from.data(), from.bytes(),
                                      cudaMemcpyDeviceToDevice, stream.get()));
}

// Figures of a child, in memory it shares with the parent.
struct Board {
  std::atomic<int> count{0};
  struct Line {
    char name[64], unit[16], note[128];
    double value, spread, at_least;
  } lines[32];

  void Add(const GpuFigure& figure) {
    Line& line = lines[count.load()];
    std::snprintf(line.name, sizeof(line.name), "%s", figure.name.c_str());
    std::snprintf(line.unit, sizeof(line.unit), "%s", figure.unit.c_str());
    std::snprintf(line.note, sizeof(line.note), "%s", figure.note.c_str());
    line.value = figure.value;
    line.spread = figure.spread;
    line.at_least = figure.at_least;
    ++count;
  }
};

// Runs the body in processes and takes over what it put on the board.
std::string WithBoard(int ranks, std::vector<GpuFigure>* figures,
                      const std::function<std::string(Peer&, Board&)>& body) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return "no memory";
  auto* const board = new (memory) Board;
  const std::string wrong = RunProcesses(ranks, kLimit, [&](Peer& peer) {
    std::string why;
    if (!collectives::HaveDevice(&why)) return kSkip + why;
    return Guarded([&] { return body(peer, *board); });
  });
  for (int i = 0; i < board->count.load(); ++i) {
    const Board::Line& line = board->lines[i];
    figures->push_back({line.name, line.value, line.unit, line.spread, line.at_least, line.note});
  }
  munmap(memory, sizeof(Board));
  return wrong;
}

GpuFigure Rate(const std::string& name, double bytes, const Samples& seconds) {
  GpuFigure figure;
  figure.name = name;
  figure.value = bytes / Median(seconds) / 1e9;
  figure.unit = "GB/s";
  figure.spread = Spread(seconds);
  return figure;
}

GpuFigure Ratio(const std::string& name, double value, double at_least, const std::string& note) {
  GpuFigure figure;
  figure.name = name;
  figure.value = value;
  figure.unit = "x";
  figure.at_least = at_least;
  figure.note = note;
  return figure;
}

// --- The kernel alone.

std::string BenchFold(const GpuBenchOptions& options, collectives::DataType type, int vectors,
                      Board& board) {
  const Stream stream;
  std::vector<DeviceBuffer> buffers;
  for (int k = 0; k < vectors; ++k) {
    buffers.emplace_back(options.device_bytes);
    TANDEM_CUDA_REQUIRE(
        cudaMemsetAsync(buffers.back().data(), 17 * k + 3, options.device_bytes, stream.get()));
  }
  collectives::DeviceFold fold;
  fold.op = collectives::ReduceOp::kMax;  // does not grow, moves what a sum moves
  fold.type = type;
  fold.inputs = fold.outputs = vectors;
  fold.count = options.device_bytes / collectives::SizeOf(type);
  for (int k = 0; k < vectors; ++k) {
    fold.in[k] = fold.out[k] = buffers[static_cast<size_t>(k)].data();
  }
  const DeviceBuffer from(options.device_bytes), to(options.device_bytes);
  Samples folds, copies;
  for (int n = -2; n < options.repetitions; ++n) {
    const double copy = DeviceSeconds(stream, [&] { Copy(stream, to, from); });
    const double one =
        DeviceSeconds(stream, [&] { Require(collectives::LaunchFold(fold, stream.get())); });
    if (n < 0) continue;  // warming up
    copies.push_back(copy);
    folds.push_back(one);
  }
  const auto bytes = static_cast<double>(options.device_bytes);
  if (type == collectives::DataType::kF32 && vectors == 2)
    board.Add(Rate("copy", 2 * bytes, copies));
  board.Add(Rate(std::string("fold ") + collectives::Name(type) + " p=" + std::to_string(vectors),
                 2 * vectors * bytes, folds));
  return "";
}

// --- Between processes.

std::string MpsNote() {
  const char* const pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const bool named = std::ifstream("/tmp/nvidia-mps/nvidia-cuda-mps-control.pid").good();
  if (pipe != nullptr) return std::string("MPS directory ") + pipe;
  return named ? "MPS runs" : "without MPS";
}

struct IpcBuffers {
  DeviceBuffer start, data;
  size_t count;
};

// Integers small enough that kInner all-reduces in place stay exact: each multiplies by p.
float StartValue(int rank, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 5);
}

std::string WrongElements(const Stream& stream, const IpcBuffers& buffers, int ranks) {
  const Bytes got = stream.Down(buffers.data.data(), buffers.data.bytes());
  size_t wrong = 0;
  for (size_t i = 0; i < buffers.count; ++i) {
    float want = 0;
    for (int r = 0; r < ranks; ++r) want += StartValue(r, i);
    for (int n = 1; n < kInner; ++n) want *= static_cast<float>(ranks);
    float value = 0;
    std::memcpy(&value, &got[i * sizeof(float)], sizeof(value));
    wrong += value == want ? 0 : 1;
  }
  return wrong == 0 ? "" : std::to_string(wrong) + " wrong elements";
}

// kInner all-reduces of every rank from the same starting line; only rank 0's time counts, and it
// ends when its stream does, which is when all are done.
double AllReduceSeconds(Peer& peer, collectives::DeviceAllReduce& all_reduce, const Stream& stream,
                        const IpcBuffers& buffers) {
  Copy(stream, buffers.data, buffers.start);
  stream.Wait();
  Require(peer.Barrier());
  collectives::DeviceReduction what;
  what.in = what.out = buffers.data.data();
  what.count = buffers.count;
  const auto begin = Clock::now();
  for (int i = 0; i < kInner; ++i) Require(all_reduce.Run(what, stream.get()));
  stream.Wait();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / kInner;
  Require(peer.Barrier());
  return seconds;
}

std::string BenchIpc(const GpuBenchOptions& options, size_t bytes, bool one_kernel, Peer& peer,
                     Board& board) {
  collectives::IpcOptions ipc;
  ipc.one_kernel_per_device = one_kernel;
  std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
  Require(
      collectives::NewIpcAllReduce(peer.rank(), peer.ranks(), peer.all_gather(), ipc, &all_reduce));
  const Stream stream;
  const IpcBuffers buffers = {DeviceBuffer(bytes), DeviceBuffer(bytes), bytes / sizeof(float)};
  Bytes start(bytes);
  for (size_t i = 0; i < buffers.count; ++i) {
    const float x = StartValue(peer.rank(), i);
    std::memcpy(&start[i * sizeof(float)], &x, sizeof(x));
  }
  stream.Up(buffers.start.data(), start);
  Samples times, copies;
  for (int n = -2; n < options.repetitions; ++n) {
    double copy = 0;
    if (peer.rank() == 0) {
      copy = DeviceSeconds(stream, [&] { Copy(stream, buffers.data, buffers.start); });
    }
    Require(peer.Barrier());
    const double one = AllReduceSeconds(peer, *all_reduce, stream, buffers);
    if (n < 0) continue;
    copies.push_back(copy);
    times.push_back(one);
  }
  const std::string wrong = WrongElements(stream, buffers, peer.ranks());
  if (peer.rank() == 0) {
    const auto moved = 2.0 * static_cast<double>(bytes);
    const std::string name = std::string(one_kernel ? "ipc" : "ipc, a block a rank,") +
                             " p=" + std::to_string(peer.ranks()) + " " +
                             std::to_string(bytes >> 10) + " KB";
    board.Add(Rate(name, peer.ranks() * moved, times));
    const bool bar = options.bars && one_kernel && bytes == options.device_bytes;
    board.Add(Ratio(name + " / copy", peer.ranks() * Median(copies) / Median(times), bar ? 0.4 : 0,
                    MpsNote()));
  }
  return wrong;
}

// --- Through the host.

// Seconds of one all-reduce, from all threads ready until all are done.
Samples StagedSeconds(int ranks, size_t bytes, size_t segment, int in_flight, int repetitions) {
  ThreadPeers peers(ranks);
  std::atomic<int> arrived{0};
  const auto barrier = [&](int times) {
    ++arrived;
    while (arrived.load() < times * ranks) std::this_thread::yield();
  };
  Samples samples;
  std::vector<std::string> failed(static_cast<size_t>(ranks));
  const auto body = [&](int rank) {
    collectives::StagedOptions staged;
    staged.segment_bytes = segment;
    staged.segments_in_flight = in_flight;
    std::unique_ptr<collectives::DeviceAllReduce> all_reduce;
    Require(collectives::NewStagedAllReduce(peers.Of(rank), staged, &all_reduce));
    const Stream stream;
    const DeviceBuffer data(bytes);
    TANDEM_CUDA_REQUIRE(cudaMemsetAsync(data.data(), 0, bytes, stream.get()));
    stream.Wait();
    collectives::DeviceReduction what;
    what.in = what.out = data.data();
    what.count = bytes / sizeof(float);
    int times = 0;
    for (int n = -2; n < repetitions; ++n) {
      barrier(++times);
      const auto begin = Clock::now();
      Require(all_reduce->Run(what, stream.get()));
      stream.Wait();
      barrier(++times);
      if (rank == 0 && n >= 0) {
        samples.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      }
    }
    return std::string();
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      failed[static_cast<size_t>(r)] = Guarded([&] { return body(r); });
      arrived += 1 << 20;  // whoever still waits is let go
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& one : failed) {
    if (!one.empty()) throw std::runtime_error(one);
  }
  return samples;
}

std::string BenchStaged(const GpuBenchOptions& options, int ranks, Board& board) {
  const size_t bytes = options.staged_bytes;
  // Both in turn, a few repetitions at a time.
  Samples whole, piped[3];
  constexpr size_t kSegments[] = {size_t{1} << 20, size_t{2} << 20, size_t{4} << 20};
  const auto append = [](Samples& to, const Samples& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (int round = 0; round < 3; ++round) {
    const int repetitions = std::max(1, options.repetitions / 3);
    append(whole, StagedSeconds(ranks, bytes, bytes, 2, repetitions));
    for (size_t s = 0; s < 3; ++s) {
      append(piped[s], StagedSeconds(ranks, bytes, kSegments[s], 4, repetitions));
    }
  }
  const std::string p = "p=" + std::to_string(ranks) + " " + std::to_string(bytes >> 20) + " MB";
  board.Add(Rate("staged whole " + p, static_cast<double>(bytes), whole));
  for (size_t s = 0; s < 3; ++s) {
    const std::string name = "staged " + std::to_string(kSegments[s] >> 20) + " MB segments " + p;
    board.Add(Rate(name, static_cast<double>(bytes), piped[s]));
    const bool bar =
        options.bars && kSegments[s] == collectives::StagedOptions().segment_bytes && ranks == 2;
    board.Add(Ratio(name + " / whole", Median(whole) / Median(piped[s]), bar ? 1.5 : 0, "threads"));
  }
  return "";
}

}  // namespace

std::string RunGpuBench(const GpuBenchOptions& options, std::vector<GpuFigure>* figures) {
  std::string wrong = WithBoard(1, figures, [&](Peer&, Board& board) {
    for (const collectives::DataType type :
         {collectives::DataType::kF32, collectives::DataType::kBF16}) {
      for (const int vectors : {2, 4}) BenchFold(options, type, vectors, board);
    }
    return std::string();
  });
  for (const int ranks : {2, 4}) {
    for (const bool one_kernel : {true, false}) {
      for (const size_t bytes : {options.device_bytes, options.device_bytes / 256}) {
        if (!wrong.empty()) return wrong;
        wrong = WithBoard(ranks, figures, [&](Peer& peer, Board& board) {
          return BenchIpc(options, bytes, one_kernel, peer, board);
        });
      }
    }
  }
  for (const int ranks : {2, 4}) {
    if (!wrong.empty()) return wrong;
    wrong = WithBoard(1, figures,
                      [&](Peer&, Board& board) { return BenchStaged(options, ranks, board); });
  }
  return wrong;
}

}  // namespace tandem
