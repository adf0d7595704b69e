// What a whole job says of its collectives: how it chose, in its summary and its log, and what each
// worker did when one of them died, or on request.
#include <signal.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(90);

const std::vector<std::string> kAuto = {"reproducible=false", "dense.algorithm=AUTO"};

std::vector<std::string> With(std::vector<std::string> set, const std::vector<std::string>& more) {
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

RunResult Dumps(const std::string& out) {
  return RunProgram({ProgramPath("tandem"), "bench", "collectives-dump", out + "/collectives"},
                    kLimit);
}

TEST(CollectiveJobTest, SaysWhatItChoseAndWhy) {
  const SmallJob job(600, 100);
  const RunArguments measured = job.Arguments("measured", kAuto);
  const RunResult run = RunJob(measured);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto& chosen = run.summary["collectives"];
  EXPECT_EQ(chosen["ranks"], 3);
  EXPECT_THAT(chosen["choices"][0]["why"].get<std::string>(),
              AnyOf(HasSubstr("predicted: "), HasSubstr("tried out: ")));
  EXPECT_THAT(chosen["costs"]["from"].get<std::string>(), HasSubstr("measured in"));
  EXPECT_THAT(ReadTextFile(measured.out + "/logs/scheduler.log"),
              ContainsRegex("[0-9:.]+ info scheduler: dense gradients between 3 workers: "));
  EXPECT_FALSE(std::filesystem::exists(measured.out + "/collectives"))
      << "a job that went well leaves no dumps";

  const RunResult ruled =
      RunJob(job.Arguments("ruled", With(kAuto, {"dense.algorithm_rules=\"allreduce:ring/4K\""})));
  ASSERT_TRUE(ruled.ok()) << ruled.DebugString();
  EXPECT_EQ(ruled.summary["collectives"]["choices"][0]["algorithm"], "ring");
  EXPECT_EQ(ruled.summary["collectives"]["choices"][0]["why"], "by the job's rules");
}

// How the workers are joined, each pair once; what carries rows and gradients is another matter.
TEST(CollectiveJobTest, SaysByWhichLinksTheWorkersAreJoined) {
  const SmallJob job(600, 100);
  const auto dense_links = [&](const std::string& link) {
    const RunResult run =
        RunJob(job.Arguments(link, {"dense.link=" + link, "cluster.transport=ZMQ"}));
    EXPECT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary.value("transport", ""), "ZeroMQ");
    std::vector<std::string> out;
    for (const auto& path : run.summary["paths"]) {
      EXPECT_EQ(path["for"], "dense gradients");
      out.push_back(absl::StrCat(path["from"].get<std::string>(), " ",
                                 path["to"].get<std::string>(), " by ",
                                 path["by"].get<std::string>()));
    }
    return out;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(dense_links("ZMQ"),
              ElementsAre("worker 1 worker 0 by ZeroMQ", "worker 2 worker 0 by ZeroMQ",
                          "worker 2 worker 1 by ZeroMQ"));
  EXPECT_THAT(dense_links("ANY"), ElementsAre("worker 1 worker 0 by shared memory",
                                              "worker 2 worker 0 by shared memory",
                                              "worker 2 worker 1 by shared memory"));
}

TEST(CollectiveJobTest, RdmaThatIsWantedAndIsNotThereIsRefused) {
  if (rdma::RdmaContext::New().ok()) GTEST_SKIP() << "there is a device";
  const SmallJob job(600, 100);
  const RunResult run = RunJob(job.Arguments("rdma", {"dense.link=RDMA"}));
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.output, HasSubstr("dense.link: RDMA: "));
}

// Costs as of a machine with cores to spare: buckets, and the same ones with the same file.
TEST(CollectiveJobTest, ChoosesBucketsByAFileOfCosts) {
  const SmallJob job(600, 100);
  WriteTextFile(job.File("costs"),
                "link tcp\nranks 3\ncores 64\nlatency 1e-9\nmessage 1e-9\noperation 1e-9\n"
                "turn 0\nsegment 65536\nbytes 65536 write 1e-9 read 1e-9 fold 1e-9 copy 1e-9\n");
  const std::vector<std::string> set =
      With(kAuto, {"dense.calibration=" + job.File("costs"), "model.dlrm.top=[256,256]"});
  const RunResult first = RunJob(job.Arguments("first", set));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  EXPECT_EQ(first.summary["collectives"]["bucket_bytes"], 65536) << first.summary["collectives"];
  const RunResult second = RunJob(job.Arguments("second", set));
  ASSERT_TRUE(second.ok()) << second.DebugString();
  EXPECT_EQ(second.summary["collectives"], first.summary["collectives"]);
}

TEST(CollectiveJobTest, AWorkersDeathLeavesADumpOfEverySurvivor) {
  const SmallJob job(600, 100);
  const RunArguments arguments =
      job.Arguments("killed", {"train.epochs=100000", "data.shuffle_buffer=0"});
  RunningJob running(arguments);
  ASSERT_TRUE(running.WaitForStep(5, kLimit)) << running.driver().Output();
  const pid_t victim = running.Roles()["worker-1"];
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const RunResult result = running.Finish(kLimit);
  EXPECT_EQ(result.exit_code, 1) << result.DebugString();
  const RunResult dumps = Dumps(arguments.out);
  EXPECT_EQ(dumps.exit_code, 0) << dumps.output;
  EXPECT_THAT(dumps.output,
              AllOf(HasSubstr("workers: 2 of 3 ranks"), HasSubstr("rank 1 left no dump")));
}

// The scheduler alone says who is lost. A worker that stands still for less time than it allows is
// waited for, and the job goes on; one that is killed is known at once by its broken links.
TEST(CollectiveJobTest, OnlyTheSchedulerSaysWhoIsLost) {
  const SmallJob job(600, 100);
  const RunArguments arguments =
      job.Arguments("paused", {"train.epochs=100000", "data.shuffle_buffer=0"});
  RunningJob running(arguments);
  ASSERT_TRUE(running.WaitForStep(5, kLimit)) << running.driver().Output();
  const pid_t victim = running.Roles()["worker-1"];
  ASSERT_GT(victim, 0);
  kill(victim, SIGSTOP);
  EXPECT_TRUE(running.driver().WaitForOutput("worker 1: no sign of life", kLimit))
      << running.driver().Output();
  EXPECT_FALSE(running.driver().WaitFor(absl::Seconds(1))) << running.driver().Output();
  kill(victim, SIGCONT);
  EXPECT_TRUE(running.driver().WaitForOutput("worker 1 is back", kLimit))
      << running.driver().Output();
  EXPECT_FALSE(running.driver().WaitFor(absl::Seconds(1))) << running.driver().Output();
  kill(victim, SIGKILL);
  const RunResult result = running.Finish(kLimit);
  EXPECT_EQ(result.exit_code, 1) << result.DebugString();
  EXPECT_THAT(result.output, HasSubstr("failed: worker 1"));
}

TEST(CollectiveJobTest, ASignalAsksForADump) {
  const SmallJob job(600, 100);
  const RunArguments arguments =
      job.Arguments("signalled", {"train.epochs=100000", "data.shuffle_buffer=0"});
  RunningJob running(arguments);
  ASSERT_TRUE(running.WaitForStep(5, kLimit)) << running.driver().Output();
  for (const char* worker : {"worker-0", "worker-1", "worker-2"}) {
    const pid_t pid = running.Roles()[worker];
    ASSERT_GT(pid, 0) << worker;
    kill(pid, SIGUSR1);
  }
  const absl::Time end = MonotonicNow() + kLimit;
  const auto all_there = [&] {
    for (const int rank : {0, 1, 2}) {
      const std::string file = absl::StrCat(arguments.out, "/collectives/workers.", rank, ".jsonl");
      if (!std::filesystem::exists(file)) return false;
    }
    return true;
  };
  while (!all_there() && MonotonicNow() < end) absl::SleepFor(absl::Milliseconds(20));
  const RunResult dumps = Dumps(arguments.out);
  EXPECT_THAT(dumps.output,
              AllOf(HasSubstr("workers: 3 of 3 ranks"), Not(HasSubstr("left no dump"))));
  running.driver().Signal(SIGTERM);
  (void)running.Finish(kLimit);
}

}  // namespace
}  // namespace tandem
