#include "tests/cuda/thread_peers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "collectives/reduce_kernels.h"

namespace tandem {
namespace {

constexpr uint64_t kRemembered = 64;  // segments; more than any staged all-reduce has under way

size_t Index(collectives::DataType type) { return static_cast<size_t>(type); }
size_t Index(collectives::ReduceOp op) { return static_cast<size_t>(op); }

}  // namespace

class ThreadPeers::Rank : public collectives::HostSegments {
 public:
  Rank(int rank, std::vector<std::unique_ptr<Rank>>& all) : rank_(rank), all_(all) {}

  collectives::DeviceStatus Start(size_t, const collectives::DeviceReduction& what, void* data,
                                  size_t count) override {
    if (!broken.ok()) return broken;
    if (what.op == collectives::ReduceOp::kPreMulSum) {
      collectives::kReduceBase.scale[Index(what.type)](data, data, count, what.scalar);
    }
    const uint64_t n = started_.load(std::memory_order_relaxed);
    work_[n % kRemembered] = {what, data, count};
    started_.store(n + 1, std::memory_order_release);
    return collectives::DeviceStatus();
  }

  collectives::DeviceStatus Finish(size_t) override {
    const uint64_t n = finished_++;
    for (const auto& peer : all_) TANDEM_DEVICE_RETURN(Await(peer->started_, n));
    Add(n);
    added_.store(n + 1, std::memory_order_release);
    for (const auto& peer : all_) TANDEM_DEVICE_RETURN(Await(peer->added_, n));
    return collectives::DeviceStatus();
  }

  void Abandon() override { abandoned = true; }

  collectives::DeviceStatus broken;
  bool abandoned = false;

 private:
  struct Work {
    collectives::DeviceReduction what;
    void* data = nullptr;
    size_t count = 0;
  };

  collectives::DeviceStatus Await(const std::atomic<uint64_t>& counter, uint64_t n) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int round = 0; counter.load(std::memory_order_acquire) <= n; ++round) {
      if (round > 4000) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      } else if (round > 2000) {
        std::this_thread::yield();
      }
      if (round % 64 == 63 && std::chrono::steady_clock::now() > deadline) {
        return collectives::DeviceStatus(collectives::DeviceStatus::Code::kDeadline,
                                         "a thread did not come");
      }
    }
    return collectives::DeviceStatus();
  }

  // My block of segment n, a piece at a time so that the copies find it in the cache.
  void Add(uint64_t n) {
    const Work& mine = work_[n % kRemembered];
    const size_t ranks = all_.size(), rank = static_cast<size_t>(rank_);
    const size_t begin = mine.count * rank / ranks, end = mine.count * (rank + 1) / ranks;
    const size_t size = collectives::SizeOf(mine.what.type), piece = (size_t{64} << 10) / size;
    for (size_t at = begin; at < end; at += piece)
      AddPiece(n, at * size, std::min(piece, end - at));
  }

  void AddPiece(uint64_t n, size_t offset, size_t count) {
    const collectives::DeviceReduction& what = work_[n % kRemembered].what;
    std::vector<const void*> in;
    for (const auto& peer : all_) in.push_back(peer->At(n, offset));
    void* const sum = At(n, offset);
    collectives::BestReduceKernels().fold[Index(what.op)][Index(what.type)](sum, in.data(),
                                                                            in.size(), count);
    if (what.op == collectives::ReduceOp::kAverage) {
      collectives::BestReduceKernels().scale[Index(what.type)](
          sum, sum, count, 1.0 / static_cast<double>(in.size()));
    }
    for (const auto& peer : all_) {
      if (peer.get() != this)
        std::memcpy(peer->At(n, offset), sum, count * collectives::SizeOf(what.type));
    }
  }

  void* At(uint64_t n, size_t offset) const {
    return static_cast<unsigned char*>(work_[n % kRemembered].data) + offset;
  }

  const int rank_;
  std::vector<std::unique_ptr<Rank>>& all_;
  Work work_[kRemembered];
  std::atomic<uint64_t> started_{0}, added_{0};
  uint64_t finished_ = 0;
};

ThreadPeers::ThreadPeers(int ranks) {
  for (int r = 0; r < ranks; ++r) ranks_.push_back(std::make_unique<Rank>(r, ranks_));
}

ThreadPeers::~ThreadPeers() = default;

collectives::HostSegments& ThreadPeers::Of(int rank) { return *ranks_[static_cast<size_t>(rank)]; }

void ThreadPeers::Break(int rank, const collectives::DeviceStatus& status) {
  ranks_[static_cast<size_t>(rank)]->broken = status;
}

bool ThreadPeers::Abandoned(int rank) const { return ranks_[static_cast<size_t>(rank)]->abandoned; }

}  // namespace tandem
