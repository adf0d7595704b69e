#include "worker/worker_barriers.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

class WorkerBarriersTest : public ::testing::Test {
 protected:
  std::vector<std::string> Due() {
    std::vector<Control> controls;
    barriers_.AppendDue(now_, &controls);
    std::vector<std::string> names;
    for (const Control& control : controls) names.push_back(control.barrier_enter().name());
    return names;
  }
  void Release(const std::string& name, int64_t max_value) {
    BarrierRelease release;
    release.set_name(name);
    release.set_max_value(max_value);
    barriers_.OnRelease(release);
  }

  absl::Time now_ = absl::UnixEpoch();
  worker::WorkerBarriers barriers_{3, absl::Seconds(1)};
};

TEST_F(WorkerBarriersTest, AnEntrySaysWhatItIsForAndIsRepeatedUntilTheRelease) {
  EXPECT_FALSE(barriers_.Pass(now_, "checkpoint 1", 7, BarrierEnter::CHECKPOINT, "model/step-7"));
  std::vector<Control> controls;
  barriers_.AppendDue(now_, &controls);
  ASSERT_EQ(controls.size(), 1u);
  const BarrierEnter& entry = controls[0].barrier_enter();
  EXPECT_EQ(entry.value(), 7);
  EXPECT_EQ(entry.parties(), 3);
  EXPECT_EQ(entry.action(), BarrierEnter::CHECKPOINT);
  EXPECT_EQ(entry.path(), "model/step-7");
  EXPECT_TRUE(Due().empty()) << "not twice in a second";
  now_ += absl::Seconds(1);
  EXPECT_EQ(Due().size(), 1u);
  Release("checkpoint 1", 9);
  now_ += absl::Seconds(1);
  EXPECT_TRUE(Due().empty());
  EXPECT_TRUE(barriers_.Pass(now_, "checkpoint 1", 0));
  EXPECT_EQ(barriers_.MaxValue("checkpoint 1"), 9);
}

TEST_F(WorkerBarriersTest, WhatWasNotEnteredIsNotReleased) {
  Release("later", 5);
  EXPECT_FALSE(barriers_.Pass(now_, "later", 1));
}

TEST_F(WorkerBarriersTest, TheFirstReleaseCounts) {
  barriers_.Pass(now_, "a", 1);
  Release("a", 2);
  Release("a", 3);
  EXPECT_EQ(barriers_.MaxValue("a"), 2);
}

TEST_F(WorkerBarriersTest, SeveralMayBeUnderWay) {
  barriers_.Pass(now_, "b", 1);
  barriers_.Pass(now_, "a", 1);
  EXPECT_EQ(Due(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(barriers_.WaitingAt(), "a");
  Release("a", 1);
  EXPECT_EQ(barriers_.WaitingAt(), "b");
  Release("b", 1);
  EXPECT_EQ(barriers_.WaitingAt(), "");
}

// Days of checkpoints take no more memory than one.
TEST_F(WorkerBarriersTest, WhatIsLongPassedIsForgotten) {
  barriers_.Pass(now_, "waits", 1);
  for (int i = 0; i < 1000; ++i) {
    const std::string name = absl::StrCat("checkpoint ", i);
    barriers_.Pass(now_, name, i);
    BarrierRelease release;
    release.set_name(name);
    release.set_max_value(i);
    release.set_record(std::string(1000, 'r'));
    barriers_.OnRelease(release);
    EXPECT_EQ(barriers_.ReleaseOf(name).record().size(), 1000u);
    const std::string before = absl::StrCat("checkpoint ", std::max(0, i - 1));
    EXPECT_EQ(barriers_.ReleaseOf(before).record().empty(), i > 0);
    Release(name, -1);  // one that comes twice
  }
  EXPECT_EQ(barriers_.remembered(), worker::WorkerBarriers::kRemembered + 1);
  EXPECT_EQ(barriers_.WaitingAt(), "waits");
  Release("checkpoint 0", 7);  // late, of one that is forgotten
  EXPECT_EQ(barriers_.remembered(), worker::WorkerBarriers::kRemembered + 1);
}

}  // namespace
}  // namespace tandem
