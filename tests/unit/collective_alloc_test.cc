// In steady state an engine asks the heap for nothing: buffers come from the BufferSource, which
// reuses its own. A program of its own, because it replaces operator new.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "collectives/legacy/engine.h"
#include "gtest/gtest.h"

namespace {
std::atomic<int64_t> allocations{0};

void* CountedAlloc(size_t bytes, size_t alignment) {
  ++allocations;
  void* p = nullptr;
  if (posix_memalign(&p, alignment, bytes > 0 ? bytes : 1) != 0) std::abort();
  return p;
}
}  // namespace

void* operator new(size_t bytes) { return CountedAlloc(bytes, 16); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return CountedAlloc(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace tandem {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kCount = 1000;

// Ranks in one thread, joined by a first-in first-out list that keeps its memory.
class Group {
 public:
  explicit Group(AllReduceAlgorithm algorithm)
      : schedules_(AllReduceSchedules(algorithm, kRanks, kCount)),
        data_(kRanks, std::vector<float>(kCount)) {
    engines_.reserve(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      engines_.push_back(std::make_unique<CollectiveEngine>(rank, kRanks, source_));
    }
  }

  void AllReduce(uint64_t number) {
    for (int rank = 0; rank < kRanks; ++rank) {
      std::fill(data_[rank].begin(), data_[rank].end(), static_cast<float>(rank + 1));
      TANDEM_CHECK_OK(engines_[rank]->Start(number, &schedules_[rank], absl::MakeSpan(data_[rank]),
                                            absl::UnixEpoch(), absl::Seconds(1), &effects_));
      Collect(rank);
    }
    for (size_t i = 0; i < frames_.size(); ++i) {
      const From next = frames_[i];
      const auto parsed = DecodeFrame(next.out.frame);
      TANDEM_CHECK_OK(parsed.status());
      TANDEM_CHECK_OK(
          engines_[next.out.to_rank]->OnSegment(next.rank, *parsed, absl::UnixEpoch(), &effects_));
      Collect(next.out.to_rank);
    }
    frames_.clear();
    for (const auto& vector : data_) TANDEM_CHECK(vector[0] == 10 && vector[kCount - 1] == 10);
  }

 private:
  struct From {
    int rank;
    OutgoingSegment out;
  };
  void Collect(int rank) {
    for (OutgoingSegment& out : effects_.sends) frames_.push_back({rank, std::move(out)});
    effects_.Clear();
  }

  HeapBufferSource source_;
  std::vector<Schedule> schedules_;
  std::vector<std::vector<float>> data_;
  std::vector<std::unique_ptr<CollectiveEngine>> engines_;
  std::vector<From> frames_;
  CollectiveEffects effects_;
};

TEST(CollectiveAllocTest, RepeatedAllReducesAllocateNothing) {
  for (const AllReduceAlgorithm algorithm : kAllReduceAlgorithms) {
    Group group(algorithm);
    uint64_t number = 0;
    while (number < 20) group.AllReduce(number++);
    const int64_t before = allocations;
    while (number < 120) group.AllReduce(number++);
    EXPECT_EQ(allocations - before, 0) << AllReduceAlgorithmName(algorithm);
  }
}

}  // namespace
}  // namespace tandem
