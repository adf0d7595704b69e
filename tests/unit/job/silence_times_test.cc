// Tests the order of the timeouts that follow from limits.silence_timeout_seconds: whoever depends
// on a process waits longer than it takes to declare that process dead.
#include "job/silence_times.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using job::SilenceTimes;

class SilenceTimesTest : public ::testing::TestWithParam<double> {};

TEST_P(SilenceTimesTest, ADeathIsKnownBeforeItsConsequences) {
  const SilenceTimes times(absl::Seconds(GetParam()));
  EXPECT_GE(times.report, 2 * times.heartbeat) << "one late heartbeat is no silence";
  EXPECT_GE(times.death, 2 * times.report);
  EXPECT_LT(times.resend, times.report);
  EXPECT_LT(times.reconnect, times.blame) << "a lost connection is the cause of what others report";
  EXPECT_LT(times.blame, times.death);
  EXPECT_GT(times.naming, times.reconnect + times.blame);
  EXPECT_LT(times.naming, times.death);
  EXPECT_GT(times.connection, times.death) << "the scheduler reports a stopped process first";
  EXPECT_GT(3 * times.beat_of_collectives, times.death);
  EXPECT_LT(3 * times.beat_of_collectives, times.verdict);
  EXPECT_GE(times.verdict, times.death + times.blame);
  EXPECT_GT(times.verdict, times.connection);
  EXPECT_GT(times.shard, times.verdict + times.connection);
}

INSTANTIATE_TEST_SUITE_P(Seconds, SilenceTimesTest, ::testing::Values(2.5, 8, 60, 3600));

TEST(SilenceTimesOfAJobTest, TheDefaultIsTheOneOfTheSchema) {
  EXPECT_EQ(SilenceTimes(Job()).death, absl::Seconds(8));
  Job job;
  job.mutable_limits()->set_silence_timeout_seconds(30);
  const SilenceTimes times(job);
  EXPECT_EQ(times.death, absl::Seconds(30));
  EXPECT_EQ(times.heartbeat, absl::Seconds(1)) << "no slower than the status is refreshed";
}

}  // namespace
}  // namespace tandem
