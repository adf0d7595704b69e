// A step is made as long as it shall be, and the end of a job ends a sleep.
#include "worker/slow_down.h"

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

job::StepTimes Constant(double seconds) {
  SlowWorkers entry;
  entry.set_distribution(SlowWorkers::CONSTANT);
  entry.set_mean_seconds(seconds);
  return job::StepTimes(entry, /*seed=*/1, /*rank=*/0, /*workers=*/1, {});
}

TEST(SlowDownTest, SleepsForTheRestAlone) {
  worker::SlowDown slow_down;
  EXPECT_FALSE(slow_down.any());
  const absl::Time begun = MonotonicNow();
  EXPECT_EQ(slow_down.WaitOut(0, begun), absl::ZeroDuration());
  slow_down.set_times(Constant(0.05));
  EXPECT_TRUE(slow_down.any());
  EXPECT_GT(slow_down.WaitOut(0, begun), absl::ZeroDuration());
  EXPECT_GE(MonotonicNow() - begun, absl::Milliseconds(50));
  EXPECT_EQ(slow_down.WaitOut(1, begun), absl::ZeroDuration()) << "that had taken as long";
  // Of a step that has computed for a minute of its minute and a hundredth of a second.
  slow_down.set_times(Constant(60.01));
  EXPECT_LT(slow_down.WaitOut(2, MonotonicNow() - absl::Minutes(1)), absl::Seconds(30));
}

// Whoever watches for stalls sees that it goes on.
TEST(SlowDownTest, ALongSleepShowsThatItGoesOn) {
  worker::SlowDown slow_down;
  slow_down.set_times(Constant(1.5));
  EXPECT_GE(slow_down.WaitOut(0, MonotonicNow()), absl::Milliseconds(1500));
  EXPECT_GE(slow_down.moments_slept(), 2);
}

TEST(SlowDownTest, TheEndOfAJobEndsASleep) {
  worker::SlowDown slow_down;
  slow_down.set_times(Constant(3000));
  std::thread ender([&] {
    absl::SleepFor(absl::Milliseconds(50));
    slow_down.End();
  });
  const absl::Duration slept = slow_down.WaitOut(0, MonotonicNow());
  ender.join();
  EXPECT_GT(slept, absl::ZeroDuration());
  EXPECT_LT(slept, absl::Minutes(1));
  EXPECT_LT(slow_down.WaitOut(1, MonotonicNow()), absl::Minutes(1)) << "none begins any more";
}

}  // namespace
}  // namespace tandem
