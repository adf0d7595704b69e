// Live jobs whose rows fill the memory of a server: each makes a checkpoint and ends with one line
// and status 1, and goes on with more memory, or with rows that give way.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Rows of `dim` floats. Most of the memory of the servers is then theirs.
Settings Rows(int dim) {
  return {"reproducible=false", absl::StrCat("table[0].dim=", dim),
          absl::StrCat("table[1].dim=", dim),
          absl::StrCat("model={dlrm {bottom: [24, ", dim, "] top: [32, 16]}}")};
}

std::string LastLine(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  return lines.empty() ? "" : lines.back();
}

class MemoryJobTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { job_ = std::make_unique<SmallJob>(12'000, 100); }
  static void TearDownTestSuite() { job_.reset(); }

  // The run has ended because of its memory, and has a checkpoint. Returns its step.
  static int64_t ExpectFull(const std::string& name, const RunResult& run) {
    EXPECT_EQ(run.exit_code, 1) << run.DebugString();
    const int64_t step = CheckpointStep(job_->File(name));
    EXPECT_GT(step, 0) << run.DebugString();
    const std::string line = LastLine(run.output);
    EXPECT_THAT(line, HasSubstr("table rest: "));
    EXPECT_THAT(line, HasSubstr(absl::StrCat("; the checkpoint of step ", step, " is in ")));
    EXPECT_THAT(line, HasSubstr("hint: --resume with a larger cluster.memory_per_server, more "
                                "servers, table.eviction or table.admission"));
    EXPECT_THAT(run.output, Not(HasSubstr("restart 1")));
    return step;
  }

  static std::unique_ptr<SmallJob> job_;
};

std::unique_ptr<SmallJob> MemoryJobTest::job_;

TEST_F(MemoryJobTest, AFullJobMakesACheckpointAndGoesOnWithMoreMemoryOrEviction) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const RunResult whole = RunJob(job_->Arguments("whole", Rows(512)));
  ASSERT_TRUE(whole.ok()) << whole.DebugString();
  // Half of the rows of a server fit, and the other half of the memory is kept free.
  double rows = 0, used = 0;
  for (const auto& table : whole.summary["tables"]) rows += table["memory_bytes"].get<double>();
  for (const auto& server : whole.summary["memory"]) {
    EXPECT_GT(server["limit_bytes"], server["used_bytes"]) << server;
    used = std::max(used, server["used_bytes"].get<double>());
  }
  ASSERT_GT(rows / 2, 20e6) << "too few to tell from the rest of a process";
  ASSERT_GT(used, rows / 2);
  // In step, then with more memory; asynchronously, then with eviction.
  for (const std::string kind : {"BSP", "ASP"}) {
    SCOPED_TRACE(kind);
    const auto limited = [&](double bytes) {
      return Join(Rows(512),
                  {absl::StrCat("policy={kind: ", kind, "}"), "cluster.max_restarts=3",
                   absl::StrCat("cluster.memory_per_server=", static_cast<int64_t>(bytes))});
    };
    ExpectFull(kind, RunJob(job_->Arguments(kind, limited(used))));
    const Settings eviction = {"table[0].eviction={kind: AT_BUDGET}",
                               "table[1].eviction={kind: AT_BUDGET}"};
    const bool evicts = kind == "ASP";
    const RunResult resumed = RunJob(
        Resumed(job_->Arguments(kind, evicts ? Join(limited(used), eviction) : limited(4 * used))));
    ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
    EXPECT_EQ(resumed.summary["samples"], whole.summary["samples"]);
    if (!evicts) continue;
    uint64_t evicted = 0, refused = 0;
    for (const auto& table : resumed.summary["tables"]) {
      evicted += table["row_counts"]["evicted"].get<uint64_t>();
      refused += table["row_counts"]["refused"].get<uint64_t>();
    }
    EXPECT_GT(evicted, 0u);
    EXPECT_LT(refused, evicted / 10) << "else some range has loaded no rows";
    for (const auto& server : resumed.summary["memory"]) {
      EXPECT_LE(server["used_bytes"], server["limit_bytes"]) << server;
    }
  }
}

TEST_F(MemoryJobTest, AFullJobWithoutCheckpointsEndsAtOnce) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  RunArguments arguments = job_->Arguments(
      "none", Join(Rows(512), {"cluster.memory_per_server=90000000", "train.epochs=1000"}));
  arguments.checkpoint = false;
  const RunResult run = RunJob(arguments);
  EXPECT_EQ(run.exit_code, 1) << run.DebugString();
  EXPECT_THAT(LastLine(run.output), HasSubstr("; the job writes no checkpoint; hint: a larger "
                                              "cluster.memory_per_server"));
}

TEST_F(MemoryJobTest, AJobThatDoesNotFitIsRefusedAtItsStart) {
  const RunResult run = RunJob(job_->Arguments("tiny", {"cluster.memory_per_server=1000000"}));
  EXPECT_NE(run.exit_code, 0) << run.DebugString();
  EXPECT_THAT(LastLine(run.output),
              HasSubstr("cluster.memory_per_server: 1000000 bytes, but a server needs "));
}

// The least memory that a refusal names is enough for the end of a job, with rows that give way and
// with others.
TEST_F(MemoryJobTest, TheLeastMemoryIsEnoughForALastCheckpoint) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const auto limited = [](double bytes) {
    return absl::StrCat("cluster.memory_per_server=", static_cast<int64_t>(bytes));
  };
  const RunResult refused = RunJob(job_->Arguments("small", Join(Rows(512), {limited(15e6)})));
  EXPECT_NE(refused.exit_code, 0) << refused.DebugString();
  const std::vector<std::string> parts =
      absl::StrSplit(LastLine(refused.output), absl::MaxSplits("but a server needs ", 1));
  double least = 0;
  ASSERT_EQ(parts.size(), 2u) << refused.DebugString();
  ASSERT_TRUE(absl::SimpleAtod(parts[1].substr(0, parts[1].find(':')), &least)) << parts[1];
  EXPECT_THAT(parts[1], HasSubstr("for rows and a last checkpoint; hint: "));
  least *= 1.04;  // processes differ a little
  const RunResult gives_way = RunJob(job_->Arguments(
      "gives way", Join(Rows(512), {limited(least), "table[0].eviction={kind: AT_BUDGET}",
                                    "table[1].eviction={kind: AT_BUDGET}"})));
  ASSERT_TRUE(gives_way.ok()) << gives_way.DebugString();
  EXPECT_GT(gives_way.summary["tables"]["rest"]["row_counts"]["evicted"], 0);
  EXPECT_GT(CheckpointStep(job_->File("gives way")), 0);
  ExpectFull("grows", RunJob(job_->Arguments("grows", Join(Rows(512), {limited(least)}))));
}

// A control group that may use `bytes`, of version 2 or 1. The destructor removes it; by then its
// processes must have ended.
class ControlGroup {
 public:
  explicit ControlGroup(int64_t bytes) {
    const bool version1 = std::filesystem::exists("/sys/fs/cgroup/memory");
    const std::string path = absl::StrCat("/sys/fs/cgroup/", version1 ? "memory/" : "",
                                          "tandem_memory_job_test_", getpid());
    if (mkdir(path.c_str(), 0755) != 0) return;
    path_ = path;
    std::ofstream limit(absl::StrCat(path, version1 ? "/memory.limit_in_bytes" : "/memory.max"));
    limit << bytes << std::flush;
    works_ = limit.good();
  }
  ~ControlGroup() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  bool works() const { return works_; }
  std::string processes() const { return path_ + "/cgroup.procs"; }

 private:
  std::string path_;
  bool works_ = false;
};

// Without a budget the kernel would kill the server: its rows need more than the group may use.
TEST_F(MemoryJobTest, InAControlGroupTheDefaultEndsTheJobBeforeTheKernelDoes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  if (geteuid() != 0) GTEST_SKIP() << "a control group needs root";
  const ControlGroup group(int64_t{512} << 20);
  if (!group.works()) GTEST_SKIP() << "no memory control groups here";
  const RunArguments arguments = job_->Arguments(
      "group", Join(Rows(2048), {"cluster.workers=1", "cluster.servers=1", "train.epochs=1000"}));
  std::vector<std::string> words = {ProgramPath("tandem"), "run", arguments.job, "--out",
                                    arguments.out};
  for (const std::string& set : arguments.set) words.insert(words.end(), {"--set", set});
  for (std::string& word : words) word = absl::StrCat("'", word, "'");
  const RunResult run = RunProgram(
      {"/bin/sh", "-c",
       absl::StrCat("echo $$ > ", group.processes(), " && exec ", absl::StrJoin(words, " "))});
  ExpectFull("group", run);
}

}  // namespace
}  // namespace tandem
