// Programs that RunProgram starts: their output, input, environment and status; programs that do
// not exist, take too long, leave children behind, or whose status other code takes.
#include "base/run_program.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

ProgramResult Shell(const std::string& script) { return RunProgram({{"sh", "-c", script}}); }

TEST(RunProgramTest, ReturnsTheOutputAndTheStatus) {
  const ProgramResult good = Shell("echo one; echo two >&2; cat");
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(good.output, "one\n") << "standard error is not part of it, standard input is empty";
  EXPECT_EQ(Shell("exit 3").status, 3);
  EXPECT_EQ(Shell("kill -9 $$").status, 128 + SIGKILL);
}

TEST(RunProgramTest, HandsOverWordsInputAndEnvironment) {
  ProgramCall call = {{"sh", "-c", "echo \"$1\" $TANDEM_A; cat; echo bad >&2", "sh", "a  'b'"}};
  call.environment = {{"TANDEM_A", "x"}};
  call.input = "in\n";
  call.with_errors = true;
  EXPECT_EQ(RunProgram(call).output, "a  'b' x\nin\nbad\n");
}

TEST(RunProgramTest, SaysWhyAProgramDoesNotStart) {
  const ProgramResult missing = RunProgram({{"/no/such/program"}});
  EXPECT_EQ(missing.not_started, ENOENT);
  EXPECT_FALSE(missing.ok());
  const std::string file = absl::StrCat(::testing::TempDir(), "/not_a_program");
  std::ofstream(file) << "text";
  EXPECT_EQ(RunProgram({{file}}).not_started, EACCES);
}

TEST(RunProgramTest, KillsTheWholeGroupAtTheLimit) {
  for (const char* script : {"echo said; sleep 1000 & sleep 1000", "exec >&-; sleep 1000"}) {
    ProgramCall call = {{"sh", "-c", script}};
    call.limit = absl::Milliseconds(200);
    const ProgramResult result = RunProgram(call);
    EXPECT_TRUE(result.timed_out) << script;
    EXPECT_FALSE(result.ok());
  }
}

TEST(RunProgramTest, LongOutputDoesNotBlockTheProgram) {
  EXPECT_EQ(Shell("head -c 1000000 /dev/zero").output.size(), 1000000u);
}

TEST(RunProgramTest, AStatusThatOtherCodeTookIsUnknown) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const ProgramResult result = Shell("echo said");
  std::signal(SIGCHLD, before);
  EXPECT_EQ(result.status, ProgramResult::kUnknown);
  EXPECT_EQ(result.output, "said\n");
  EXPECT_FALSE(result.ok());
}

}  // namespace
}  // namespace tandem
