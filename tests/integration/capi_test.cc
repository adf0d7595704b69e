// The C interface: a program in C trains with it, and the library shows its functions alone.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/integration/program_cluster.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

constexpr char kJob[] = R"(
cluster { workers: 2 servers: 1 }
data { format: PROGRAM }
table { name: "items" dim: 1 optimizer { kind: ADAGRAD learning_rate: 0.3 } }
dense { optimizer { kind: SGD learning_rate: 0.1 } }
policy { kind: ASP }
model { program {} }
train { batch_size: 64 epochs: 4 prefetch_steps: 1 }
evaluation { batch_size: 64 }
)";

TEST(CapiTest, AProgramInCTrains) {
  const TemporaryFolder folder;
  WriteTextFile(folder.File("job.textproto"), kJob);
  const absl::StatusOr<Job> job = job::ReadJobFile(folder.File("job.textproto"), {});
  ASSERT_TRUE(job.ok()) << job.status();
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ProgramCluster cluster(*plan, folder.File("out"));
  std::vector<std::unique_ptr<ChildProcess>> programs;
  for (const char* const log : {"0.log", "1.log"}) {
    programs.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{ProgramPath("tandem_example")}, folder.File(log),
        std::map<std::string, std::string>{{"TANDEM_JOB", folder.File("job.textproto")},
                                           {"TANDEM_SCHEDULER", cluster.scheduler()}}));
  }
  for (const auto& program : programs) {
    ASSERT_TRUE(program->WaitFor(kRunLimit)) << program->Output();
    EXPECT_EQ(program->exit_code(), 0) << program->Output();
  }
  EXPECT_TRUE(cluster.Wait().ok());
  const auto summary = nlohmann::json::parse(ReadTextFile(folder.File("out/summary.json")));
  EXPECT_EQ(summary["samples"], 2 * 4 * 60 * 64);
  EXPECT_GT(summary["eval"]["auc"], 0.7) << summary["eval"].dump();  // at best 5/6
}

TEST(CapiTest, AWrongJobIsRefusedWithItsLine) {
  const TemporaryFolder folder;
  WriteTextFile(folder.File("job.textproto"), "cluster { workers: 1 servers: 1 }\nmodle {}\n");
  ChildProcess program(
      {ProgramPath("tandem_example")}, folder.File("log"),
      {{"TANDEM_JOB", folder.File("job.textproto")}, {"TANDEM_SCHEDULER", "tcp://127.0.0.1:1"}});
  ASSERT_TRUE(program.WaitFor(kRunLimit));
  EXPECT_EQ(program.exit_code(), 1);
  EXPECT_THAT(program.Output(), ::testing::HasSubstr("job.textproto:2:"));
}

TEST(CapiTest, TheLibraryShowsItsFunctionsAloneAndNeedsNoTorch) {
  const std::string bin = ProgramPath("tandem_example");
  const std::string library = bin.substr(0, bin.rfind("/bin/")) + "/lib/libtandem.so";
  const RunResult symbols = RunProgram({"/usr/bin/nm", "-D", "--defined-only", library});
  ASSERT_TRUE(symbols.ok()) << symbols.DebugString();
  int functions = 0;
  for (const absl::string_view line : absl::StrSplit(symbols.output, '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::StrContains(line, " T tandem_")) << line;
    ++functions;
  }
  EXPECT_GE(functions, 30);
  const RunResult needs = RunProgram({"/usr/bin/readelf", "-d", library});
  ASSERT_TRUE(needs.ok()) << needs.DebugString();
  for (const char* const name : {"torch", "c10", "nccl", "cuda", "python"}) {
    EXPECT_FALSE(absl::StrContains(needs.output, absl::StrCat("[lib", name))) << needs.output;
  }
}

}  // namespace
}  // namespace tandem
