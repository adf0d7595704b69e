// The speed of training over reporting intervals.
#include "scheduler/observe/speed_meter.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

// A meter whose workers report by hand.
struct Meter {
  explicit Meter(int workers = 1) : meter(workers, absl::Seconds(0.5)) { meter.Start(At(0)); }
  void Report(double now, int64_t samples, double paused = 0, int rank = 0) {
    Progress progress;
    progress.set_samples(samples);
    progress.set_paused_seconds(paused);
    meter.Add(At(now), rank, progress);
  }
  scheduler::SpeedMeter meter;
};

TEST(SpeedMeterTest, ASpeedIsThatOfTheInterval) {
  Meter meter(2);
  for (const auto& [now, samples] : {std::pair(0.5, 100), std::pair(1.0, 150)}) {
    meter.Report(now, samples, 0, 0);
    meter.Report(now, 2 * samples, 0, 1);
    EXPECT_DOUBLE_EQ(*meter.meter.Take(), now < 1 ? 600 : 300);
  }
}

// A worker reports in time and, at the end of the epoch 6 ms later, again.
TEST(SpeedMeterTest, AShortIntervalIsMeasuredWithTheOneBefore) {
  Meter meter;
  meter.Report(0.5, 100'000);
  (void)meter.meter.Take();
  meter.Report(0.9, 180'000);
  EXPECT_NEAR(*meter.meter.Take(), 200'000, 1);
  meter.Report(1.05, 212'288);  // 32,288 more, in the scheduler's interval of 6 ms
  EXPECT_NEAR(*meter.meter.Take(), 112'288 / 0.55, 1);
  meter.Report(1.551, 312'288);
  EXPECT_NEAR(*meter.meter.Take(), 100'000 / 0.501, 1);
}

TEST(SpeedMeterTest, TheTimeOfAnEvaluationDoesNotCount) {
  Meter meter;
  meter.Report(0.5, 100);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 200);
  meter.Report(1.0, 160, 0.2);
  EXPECT_NEAR(*meter.meter.Take(), 200, 1e-6);
  for (int i = 1; i <= 20; ++i) {
    meter.Report(1.0 + 0.5 * i, 160, 0.2 + 0.5 * i);
    EXPECT_EQ(meter.meter.Take(), absl::nullopt);
  }
  meter.Report(11.5, 180, 10.6);  // 0.1 s of training: one step of 20 samples
  EXPECT_NEAR(*meter.meter.Take(), 200, 1e-6);
}

// A worker that is stopped sends nothing; one that waits trains nothing. Both are slow.
TEST(SpeedMeterTest, AWorkerThatStandsStillIsSlow) {
  Meter meter(2);
  for (int rank = 0; rank < 2; ++rank) meter.Report(0.5, 100, 0, rank);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 400);
  meter.Report(1.0, 200, 0, 0);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 200);
  meter.Report(1.5, 200, 0, 0);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 0);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 0);
  meter.Report(2.5, 300, 0, 0);
  meter.Report(2.5, 500, 0, 1);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 100 / 1.0 + 400 / 2.0);
}

// The counts of a new process in the place of a worker begin below those of the dead one.
TEST(SpeedMeterTest, AReplacedWorkerCountsFromItsFirstReport) {
  Meter meter;
  meter.Report(0.5, 100);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 200);
  meter.Report(3.0, 40);
  meter.Report(3.5, 90);
  EXPECT_DOUBLE_EQ(*meter.meter.Take(), 100);
}

// A peer that does not keep to the protocol.
TEST(SpeedMeterTest, AReportBeforeTrainingIsIgnored) {
  scheduler::SpeedMeter meter(1, absl::Seconds(0.5));
  Progress progress;
  progress.set_samples(100);
  meter.Add(At(0), 0, progress);
  meter.Start(At(1));
  progress.set_samples(200);
  meter.Add(At(2), 0, progress);
  EXPECT_DOUBLE_EQ(*meter.Take(), 200);
}

}  // namespace
}  // namespace tandem
