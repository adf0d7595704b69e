// What a user at a terminal sees: one line that is rewritten in place and never wraps, and Ctrl-C.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(90);
constexpr absl::string_view kErase = "\r\x1b[K";

// A program at a terminal of its own. Ended and waited for by the destructor.
class AtTerminal {
 public:
  AtTerminal(const std::vector<std::string>& argv, unsigned short columns,
             const char* kind = "xterm", const char* variable = "TANDEM_NOTHING") {
    std::vector<char*> args;
    for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
    args.push_back(nullptr);
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = columns;
    pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", kind, 1);
      setenv(variable, "0", 1);
      execv(args[0], args.data());
      _exit(127);
    }
    fcntl(terminal_, F_SETFL, O_NONBLOCK);
  }
  ~AtTerminal() {
    if (!ended_) kill(pid_, SIGTERM);
    if (!WaitForEnd(absl::Seconds(15))) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(terminal_);
  }

  void Type(absl::string_view keys) {
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Reads until `text` has been seen this often.
  bool WaitForText(absl::string_view text, size_t times, absl::Duration limit) {
    const absl::Time deadline = MonotonicNow() + limit;
    while (Count(text) < times && MonotonicNow() < deadline) Read();
    return Count(text) >= times;
  }
  bool WaitForEnd(absl::Duration limit) {
    const absl::Time deadline = MonotonicNow() + limit;
    while (!ended_ && MonotonicNow() < deadline) {
      Read();
      ended_ = waitpid(pid_, &status_, WNOHANG) == pid_;
    }
    Read();
    return ended_;
  }
  int term_signal() const { return WIFSIGNALED(status_) ? WTERMSIG(status_) : 0; }
  const std::string& seen() const { return seen_; }

 private:
  size_t Count(absl::string_view text) const {
    return std::vector<std::string>(absl::StrSplit(seen_, text)).size() - 1;
  }
  void Read() {
    pollfd wait = {terminal_, POLLIN, 0};
    poll(&wait, 1, 20);
    char bytes[4096];
    for (ssize_t n; (n = read(terminal_, bytes, sizeof bytes)) > 0;) {
      seen_.append(bytes, static_cast<size_t>(n));
    }
  }

  int terminal_ = -1, status_ = 0;
  pid_t pid_ = -1;
  bool ended_ = false;
  std::string seen_;
};

class TerminalTest : public ::testing::TestWithParam<int> {
 protected:
  std::vector<std::string> EndlessJob() const {
    return {ProgramPath("tandem"),
            "run",
            SourcePath("configs/delimited.textproto"),
            "--set",
            "data.train=" + SourcePath("configs/data/example_train.csv"),
            "--set",
            "data.test=" + SourcePath("configs/data/example_test.csv"),
            "--set",
            "train.epochs=1000000",
            "--out",
            folder_.File("out")};
  }
  TemporaryFolder folder_;
};

// Started by hand, it speaks to a person as `tandem run` does; to a program it gives events.
TEST_F(TerminalTest, TheSchedulerSaysWhatItWaitsFor) {
  std::vector<std::string> argv = EndlessJob();
  argv[0] = ProgramPath("tandem-scheduler");
  argv[1] = "--job";
  AtTerminal scheduler(argv, 100);
  ASSERT_TRUE(scheduler.WaitForText("waits for servers and workers: --scheduler tcp://", 1, kLimit))
      << scheduler.seen();
  scheduler.Type("\x03");
  ASSERT_TRUE(scheduler.WaitForEnd(absl::Seconds(10))) << scheduler.seen();
  EXPECT_THAT(scheduler.seen(), Not(HasSubstr("{\"")));
}

TEST_P(TerminalTest, OneLineThatIsRewrittenUntilCtrlC) {
  AtTerminal run(EndlessJob(), static_cast<unsigned short>(GetParam()));
  ASSERT_TRUE(run.WaitForText(absl::StrCat(kErase, "epoch "), 4, kLimit)) << run.seen();
  const std::string before = run.seen();
  run.Type("\x03");
  ASSERT_TRUE(run.WaitForEnd(absl::Seconds(10))) << run.seen();
  EXPECT_EQ(run.term_signal(), SIGINT) << "a loop of the shell stops, too";
  EXPECT_THAT(run.seen(), HasSubstr("run: stopped by a signal, checkpoint at step"));

  // Between the announcement and Ctrl-C nothing but the live line: no line feed, no wrap.
  const std::string live = before.substr(before.find(std::string(kErase)));
  EXPECT_THAT(live, Not(HasSubstr("\n")));
  for (const absl::string_view line : absl::StrSplit(live, kErase)) {
    EXPECT_LT(line.size(), static_cast<size_t>(GetParam())) << line;
  }
  EXPECT_THAT(live, HasSubstr("loss 0."));
  EXPECT_THAT(live, HasSubstr("AUC 0."));
  EXPECT_THAT(live, HasSubstr("stale"));
}

// A terminal that cannot move its cursor gets lines, now and then, as a file does. A rank of
// mpirun also gets lines, because mpirun copies what its ranks print.
TEST_F(TerminalTest, LinesWithoutEscapesWhereTheTerminalIsDumb) {
  for (const auto& [kind, variable] :
       {std::pair{"dumb", "TANDEM_NOTHING"}, std::pair{"xterm", "OMPI_COMM_WORLD_RANK"}}) {
    AtTerminal run(EndlessJob(), 80, kind, variable);
    ASSERT_TRUE(run.WaitForText("epoch ", 1, kLimit)) << run.seen();
    run.Type("\x03");
    ASSERT_TRUE(run.WaitForEnd(absl::Seconds(20))) << run.seen();
    EXPECT_THAT(run.seen(), Not(HasSubstr("\x1b"))) << variable;
    std::filesystem::remove_all(folder_.File("out"));
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, TerminalTest, ::testing::Values(80, 132));

}  // namespace
}  // namespace tandem
