// In steady state a group asks the heap for nothing. A program of its own, because it replaces
// operator new.
#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "collectives/group.h"
#include "gtest/gtest.h"
#include "tests/unit/collectives/collective_world.h"
#include "tests/unit/count_allocations.h"

namespace tandem {
namespace {

constexpr int kRanks = 4;
constexpr int64_t kCount = 20000;

class Repeated {
 public:
  explicit Repeated(const collectives::AlgorithmChoice& choice) : world_(kRanks, Hosts()) {
    call_.choice = choice;
    for (auto& v : data_) v.resize(kCount);
  }

  // Many times the same, as training does; in one thread.
  void AllReduce() {
    collectives::Work work[kRanks];
    for (int r = 0; r < kRanks; ++r) {
      std::fill(data_[r].begin(), data_[r].end(), static_cast<float>(r + 1));
      work[r] = *world_.group(r).AllReduce(data_[r].data(), data_[r].data(), kCount,
                                           collectives::DataType::kF32, collectives::ReduceOp::kSum,
                                           call_);
    }
    for (bool all = false; !all;) {
      all = true;
      for (int r = 0; r < kRanks; ++r) all = world_.group(r).Test(work[r]) && all;
    }
    for (const auto& v : data_) TANDEM_CHECK(v[0] == 10 && v[kCount - 1] == 10);
  }

 private:
  static collectives::GroupOptions Hosts() {
    collectives::GroupOptions options;
    options.host_of_rank = {0, 0, 1, 1};
    return options;
  }

  CollectiveWorld world_;
  collectives::CallOptions call_;
  std::vector<float> data_[kRanks];
};

TEST(CollectiveAllocTest, RepeatedAllReducesAllocateNothing) {
  for (const collectives::Algorithm algorithm :
       collectives::AlgorithmsFor(collectives::Primitive::kAllReduce)) {
    Repeated repeated({algorithm, 4096});
    for (int i = 0; i < 20; ++i) repeated.AllReduce();
    const int64_t before = allocations;
    for (int i = 0; i < 100; ++i) repeated.AllReduce();
    EXPECT_EQ(allocations - before, 0) << collectives::AlgorithmName(algorithm);
  }
}

}  // namespace
}  // namespace tandem
