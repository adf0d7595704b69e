// Processes that a program starts: how they end is told, and where that is not known, that they
// have ended.
#include "cli/launch/children.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using cli::Children;
using ::testing::HasSubstr;

class ChildrenTest : public ::testing::Test {
 protected:
  ~ChildrenTest() override {
    std::error_code ignored;
    std::filesystem::remove(log_, ignored);
  }

  // A shell that does as it is told.
  void Start(Children* children, const std::string& name, const std::string& script) {
    const absl::Status started = children->Start({name, {"/bin/sh", "-c", script}, log_});
    ASSERT_TRUE(started.ok()) << started;
  }
  // By name, once all have ended.
  static std::map<std::string, Children::Exit> Ends(Children* children) {
    std::map<std::string, Children::Exit> ends;
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    while (children->running() && MonotonicNow() < deadline) {
      for (Children::Exit& exit : children->Reap()) ends[exit.name] = std::move(exit);
      absl::SleepFor(absl::Milliseconds(5));
    }
    return ends;
  }

  const std::string log_ = ::testing::TempDir() + "children_test.log";
};

TEST_F(ChildrenTest, HowTheyEndIsTold) {
  Children children;
  Start(&children, "good", "exit 0");
  Start(&children, "bad", "exit 3");
  Start(&children, "killed", "kill -9 $$");
  const std::map<std::string, Children::Exit> ends = Ends(&children);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends.at("good").code, 0);
  EXPECT_EQ(ends.at("good").signal, 0);
  EXPECT_EQ(ends.at("bad").code, 3);
  EXPECT_EQ(ends.at("killed").signal, SIGKILL);
  EXPECT_THAT(ends.at("bad").DebugString(), HasSubstr("exited with status 3"));
}

// While SIGCHLD is ignored, the system forgets a child as it ends.
// Another user may own the folder of the log.
TEST_F(ChildrenTest, ALogThatIsALinkIsRefused) {
  const std::string link = log_ + ".link";
  std::filesystem::remove(link);
  std::filesystem::create_symlink(log_, link);
  cli::Children children;
  const absl::Status started =
      children.Start({.name = "worker 0", .argv = {"/bin/echo", "words"}, .log = link});
  EXPECT_EQ(started.message(), link + ": cannot be written: it is a link; hint: remove it");
  EXPECT_FALSE(std::filesystem::exists(log_));
  std::filesystem::remove(link);
}

TEST_F(ChildrenTest, AnEndThatTheSystemForgetsIsSeenAndIsNoGoodOne) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  Children children;
  Start(&children, "short", "exit 0");
  const std::map<std::string, Children::Exit> ends = Ends(&children);
  Start(&children, "long", "exec sleep 1000");
  const std::vector<Children::Exit> stopped = children.StopAll(absl::Seconds(20));
  std::signal(SIGCHLD, before);
  ASSERT_EQ(ends.count("short"), 1u);
  EXPECT_EQ(ends.at("short").code, Children::Exit::kUnknown);
  EXPECT_GT(ends.at("short").pid, 0);
  EXPECT_THAT(ends.at("short").DebugString(), HasSubstr("its exit status is not known"));
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].name, "long");
  EXPECT_FALSE(children.running());
}

// The state of a process in /proc ('S', 'Z', ...); 0: there is none.
char StateOf(pid_t pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '\0' : text[end + 2];
}

bool HasEnded(pid_t pid) {
  const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
  while (MonotonicNow() < deadline) {
    const char state = StateOf(pid);
    if (state == '\0' || state == 'Z' || state == 'X') return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return false;
}

// Like a script whose data loader has processes of its own.
TEST_F(ChildrenTest, ProcessesOfAFailedChildEndWithIt) {
  for (const std::string end : {"kill -9 $$", "exit 3"}) {
    std::filesystem::remove(log_);
    Children children;
    Start(&children, "script", "sleep 1000 & echo $!; " + end);
    ASSERT_EQ(Ends(&children).size(), 1u);
    const std::vector<std::string> lines = cli::LastLines(log_);
    pid_t helper = 0;
    ASSERT_TRUE(!lines.empty() && absl::SimpleAtoi(lines[0], &helper));
    EXPECT_TRUE(HasEnded(helper)) << end;
    if (!HasEnded(helper)) kill(helper, SIGKILL);
  }
}

// A script that ends well may leave a process on purpose.
TEST_F(ChildrenTest, ProcessesOfAChildThatEndsWellGoOn) {
  Children children;
  Start(&children, "script", "sleep 1000 & echo $!");
  ASSERT_EQ(Ends(&children).at("script").code, 0);
  const std::vector<std::string> lines = cli::LastLines(log_);
  pid_t helper = 0;
  ASSERT_TRUE(!lines.empty() && absl::SimpleAtoi(lines[0], &helper));
  EXPECT_EQ(StateOf(helper), 'S');
  kill(helper, SIGKILL);
}

// The system keeps a process that has ended until the process that traces it has looked, as it
// keeps one that waits for a dead disk. Its parent cannot tell the two apart.
TEST_F(ChildrenTest, AChildThatDoesNotEndIsNamed) {
  Children children;
  Start(&children, "worker 1", "echo $$; exec sleep 1000");
  std::vector<std::string> lines;
  while ((lines = cli::LastLines(log_)).empty()) absl::SleepFor(absl::Milliseconds(5));
  pid_t child = 0;
  ASSERT_TRUE(absl::SimpleAtoi(lines[0], &child));
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const OwnedFd from_tracer(fds[0]);
  OwnedFd to_test(fds[1]);
  const pid_t tracer = fork();
  if (tracer == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char traces = ptrace(PTRACE_SEIZE, child, nullptr, nullptr) == 0 ? 'y' : 'n';
    (void)!write(fds[1], &traces, 1);
    absl::SleepFor(absl::Seconds(1));  // the line comes before, or never
    _exit(0);
  }
  to_test = OwnedFd();
  char traces = 'n';
  ASSERT_EQ(read(from_tracer.get(), &traces, 1), 1);
  if (traces != 'y') {
    kill(tracer, SIGKILL);
    waitpid(tracer, nullptr, 0);
    GTEST_SKIP() << "this system allows no ptrace";
  }
  ::testing::internal::CaptureStderr();
  const std::vector<Children::Exit> ended =
      children.StopAll(absl::ZeroDuration(), absl::Milliseconds(50));
  const std::string said = ::testing::internal::GetCapturedStderr();
  waitpid(tracer, nullptr, 0);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].signal, SIGKILL);
  EXPECT_THAT(said, HasSubstr(absl::StrCat("waiting for worker 1 (pid ", child, "): killed")));
  EXPECT_EQ(said.find("waiting"), said.rfind("waiting")) << "once";
}

// The pipe of the events is descriptor 3; a child has no other descriptor of its parent.
TEST_F(ChildrenTest, AChildHasItsPipeAndNoOtherDescriptor) {
  Children children;
  // This process may have inherited descriptors of its own.
  ASSERT_EQ(close_range(3, ~0u, CLOSE_RANGE_CLOEXEC), 0);
  const OwnedFd pipe(open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const absl::Status started = children.Start({.name = "list",
                                               .argv = {"/bin/sh", "-c", "ls -l /proc/$$/fd"},
                                               .log = log_,
                                               .pipe_fd = pipe.get()});
  ASSERT_TRUE(started.ok()) << started;
  Ends(&children);
  std::ifstream file(log_);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(text, HasSubstr("0 -> /dev/null"));
  EXPECT_THAT(text, HasSubstr("3 -> /dev/zero"));
  EXPECT_EQ(text.find("/dev/null"), text.rfind("/dev/null")) << text;
}

}  // namespace
}  // namespace tandem
