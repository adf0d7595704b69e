// Policies in shared libraries: `tandem policy check` finds what they promise and do not keep, jobs
// refuse libraries that were not checked, and SSP in C has the bits of the built-in one.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class PluginTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(2000, 200);
    for (const char* name : {"libssp.so", "libtest_policy.so"}) {
      fs::copy_file(absl::StrCat(TANDEM_POLICIES, "/", name), job_->File(name));
    }
  }
  static void TearDownTestSuite() { job_.reset(); }

  static RunResult Check(const std::string& library, const std::string& options) {
    return RunProgram({ProgramPath("tandem"), "policy", "check", job_->File(library), "--options",
                       options, "--schedules", "200"});
  }
  static std::string Plugin(const std::string& library, const std::string& options) {
    return absl::StrCat("policy={kind: PLUGIN library: '", job_->File(library), "' options: '",
                        options, "'}");
  }
  static ModelBits Model(const std::string& name) {
    absl::StatusOr<ModelBits> model = ReadCheckpoint(job_->File(name + "/model"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : ModelBits();
  }
  static RunResult Simulate(const std::string& name, const Settings& set) {
    std::vector<std::string> argv = {ProgramPath("tandem"), "simulate", job_->File("job.textproto"),
                                     "--out", job_->File(name)};
    for (const std::string& text : set) argv.insert(argv.end(), {"--set", text});
    return RunProgram(argv);
  }

  static std::unique_ptr<SmallJob> job_;
};
std::unique_ptr<SmallJob> PluginTest::job_;

const Settings kServers = {"reproducible=false", "dense.synchroniser=SERVERS",
                           "train.prefetch_steps=1"};

TEST_F(PluginTest, TheCheckFindsEachFault) {
  const RunResult honest = Check("libtest_policy.so", "honest");
  EXPECT_TRUE(honest.ok()) << honest.DebugString();
  EXPECT_THAT(honest.output, HasSubstr("TEST(honest) keeps its promises: 200 schedules"));
  const struct {
    const char* fault;
    int code;
    const char* says;
  } kFaults[] = {
      {"bound", 1, "serve: serves step"},
      {"start", 1, "start: lets worker"},
      {"order_free", 1, "another order of arrival gives other steps of the optimizer"},
      {"never_starts", 1, "start: is never true again: worker"},
      {"never_serves", 1, "serve: is never true again: worker"},
      {"holds", 1, "arrive returned HOLD, and describe does not say `holds`"},
      {"drops", 1, "arrive returned DROP, and describe does not say `skips`"},
      {"keeps", 1, "stay held after the last push of all workers"},
      {"crash", 1, "ended the process with signal 6"},
      {"nonsense", 1, "arrive returned 7, expected APPLY, HOLD or DROP"},
      {"nan", 1, "apply returned factor nan"},
      {"ticks", 1, "tick returned 1, expected 0 without a push and a held group"},
      {"exit", 1, "ended the process with exit code 0"},
      {"lockstep", 2, "without `holds`, which they need"},
      {"no_name", 2, "describe gave no name"},
      {"unknown", 2, "refuses options \"unknown\": unknown fault"},
  };
  fs::remove(job_->File("libtest_policy.so.checked"));
  for (const auto& fault : kFaults) {
    const RunResult found = Check("libtest_policy.so", fault.fault);
    EXPECT_EQ(found.exit_code, fault.code) << fault.fault << found.DebugString();
    EXPECT_THAT(found.output, HasSubstr(fault.says)) << fault.fault;
  }
  EXPECT_FALSE(fs::exists(job_->File("libtest_policy.so.checked")));
}

TEST_F(PluginTest, SspInCHasTheBitsOfTheBuiltInPolicy) {
  const RunResult checked = Check("libssp.so", "bound=2");
  ASSERT_TRUE(checked.ok()) << checked.DebugString();
  const std::string built_in = "policy={kind: SSP bound: 2}", own = Plugin("libssp.so", "bound=2");
  const RunResult a = Simulate("simulated-ssp", Join(kServers, {built_in}));
  const RunResult b = Simulate("simulated-own", Join(kServers, {own}));
  ASSERT_TRUE(a.ok() && b.ok()) << a.DebugString() << b.DebugString();
  EXPECT_EQ(Difference(Model("simulated-ssp"), Model("simulated-own")), "");
  EXPECT_EQ(ReadTextFile(job_->File("simulated-ssp/metrics.jsonl")),
            ReadTextFile(job_->File("simulated-own/metrics.jsonl")));
  // A live worker alone that reads nothing ahead is deterministic.
  const Settings alone = Join(kServers, {"cluster.workers=1", "train.prefetch_steps=0"});
  for (const auto& [name, policy] : {std::pair{"live-ssp", built_in}, std::pair{"live-own", own}}) {
    const RunResult run = RunJob(job_->Arguments(name, Join(alone, {policy})));
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary["policy"]["rest"], "SSP(2)");
  }
  EXPECT_EQ(Difference(Model("live-ssp"), Model("live-own")), "");
  // With several workers the bound holds, as for the built-in policy.
  const RunResult live = RunJob(job_->Arguments("live", Join(kServers, {own})));
  ASSERT_TRUE(live.ok()) << live.DebugString();
  EXPECT_LE(live.summary["staleness"]["rest"]["clock_gap"]["max"], 2);
}

// The state is part of checkpoints: the library ends the process if it does not fit the steps.
TEST_F(PluginTest, AResumedRunHasTheState) {
  ASSERT_TRUE(Check("libtest_policy.so", "honest").ok());
  const Settings set = Join(kServers, {Plugin("libtest_policy.so", "honest")});
  const RunResult first = RunJob(job_->Arguments("state", Join(set, {"train.max_steps=10"})));
  ASSERT_TRUE(first.ok()) << first.DebugString();
  const RunResult resumed =
      RunJob(Resumed(job_->Arguments("state", Join(set, {"train.max_steps=20"}))));
  EXPECT_TRUE(resumed.ok()) << resumed.DebugString();
}

TEST_F(PluginTest, JobsRefuseWhatWasNotChecked) {
  const auto refusal = [](const std::string& name, const std::string& library,
                          const Settings& set) {
    const RunResult run =
        RunJob(job_->Arguments(name, Join(Join(kServers, {Plugin(library, "bound=1")}), set)));
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    return run.output;
  };
  fs::copy_file(job_->File("libssp.so"), job_->File("libnew.so"));
  EXPECT_THAT(refusal("new", "libnew.so", {}), HasSubstr("libnew.so was not checked; hint: tandem "
                                                         "policy check "));
  ASSERT_TRUE(Check("libnew.so", "bound=1").ok());
  EXPECT_THAT(refusal("open", "libnew.so", {"security.encrypt=NONE"}),
              HasSubstr("strangers must be kept out; drop security { encrypt: NONE }"));
  std::ofstream(job_->File("libnew.so"), std::ios::app) << "more";
  EXPECT_THAT(refusal("changed", "libnew.so", {}),
              HasSubstr("libnew.so has changed since it was checked"));
  std::ofstream(job_->File("text.so")) << "no library";
  const RunResult text = Check("text.so", "");
  EXPECT_EQ(text.exit_code, 2);
  EXPECT_THAT(text.output, HasSubstr("text.so: cannot be loaded: "));
  EXPECT_THAT(refusal("none", "libnone.so", {}), HasSubstr("libnone.so"));
}

}  // namespace
}  // namespace tandem
