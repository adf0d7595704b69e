// A thread that stays on some processors: which ones, and that its children stay there, too. How a
// child process ended, and where that is not to be known. What programs are given by those that
// start them: closed descriptors, ignored signals.
#include "base/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/exhaustion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::vector<int> Processors() {
  cpu_set_t set;
  EXPECT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> processors;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<size_t>(cpu), &set)) processors.push_back(cpu);
  }
  return processors;
}

void OnAThread(const std::function<void()>& work) { std::thread(work).join(); }

TEST(StayOnProcessorsTest, CountsRoundAndRoundAndChildrenStay) {
  const std::vector<int> all = Processors();
  const int count = static_cast<int>(all.size());
  for (const int first : {0, count - 1, count, 5 * count + 1}) {
    OnAThread([&] {
      ASSERT_TRUE(StayOnProcessors(first, 1).ok());
      const std::vector<int> want = {all[static_cast<size_t>(first % count)]};
      EXPECT_EQ(Processors(), want) << first;
      OnAThread([&] { EXPECT_EQ(Processors(), want); });
      ASSERT_TRUE(StayOnProcessors(7, 2).ok());  // of those it may still use
      EXPECT_EQ(Processors(), want);
    });
  }
  OnAThread([&] {
    ASSERT_TRUE(StayOnProcessors(1, count + 3).ok());
    EXPECT_EQ(Processors(), all);
  });
  EXPECT_EQ(Processors(), all);  // the caller of a thread that stays somewhere does not
}

// A process that does `work` and exits with what that returns.
pid_t Fork(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  return child;
}

TEST(WaitForEndTest, TellsHowAChildEnded) {
  const std::optional<int> exited = WaitForEnd(Fork([] { return 7; }));
  ASSERT_TRUE(exited.has_value() && WIFEXITED(*exited));
  EXPECT_EQ(WEXITSTATUS(*exited), 7);
  const std::optional<int> killed = WaitForEnd(Fork([] { return raise(SIGKILL); }));
  ASSERT_TRUE(killed.has_value() && WIFSIGNALED(*killed));
  EXPECT_EQ(WTERMSIG(*killed), SIGKILL);
}

TEST(WaitForEndTest, AnEndThatTheSystemForgetsIsNotTakenForAGoodOne) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  const std::optional<int> forgotten = WaitForEnd(Fork([] { return 7; }));
  std::signal(SIGCHLD, before);
  EXPECT_FALSE(forgotten.has_value());
}

// Whoever starts a program may ignore SIGCHLD, as shells with `trap "" CHLD` do, and so would the
// program. In a process of its own, since others here are not to be set up.
TEST(SetUpProcessTest, EndsOfChildrenAreHeardOf) {
  const auto program = [] {
    std::signal(SIGCHLD, SIG_IGN);
    SetUpProcess();
    const std::optional<int> end = WaitForEnd(Fork([] { return 7; }));
    return end.has_value() && WIFEXITED(*end) ? WEXITSTATUS(*end) : 1;
  };
  const std::optional<int> end = WaitForEnd(Fork(program));
  ASSERT_TRUE(end.has_value() && WIFEXITED(*end));
  EXPECT_EQ(WEXITSTATUS(*end), 7);
}

// Daemons start programs without stdin, stdout and stderr. A socket that got such a number would be
// written texts for people into.
TEST(SetUpProcessTest, StandardDescriptorsAreOpen) {
  for (const int only : {-1, STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    const auto program = [only] {
      for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (only < 0 || fd == only) close(fd);
      }
      SetUpProcess();
      const int next = open("/dev/null", O_RDONLY);
      char byte = 0;
      const bool works = (only > 0 || read(STDIN_FILENO, &byte, 1) == 0) &&
                         write(STDOUT_FILENO, "", 0) == 0 && write(STDERR_FILENO, "", 0) == 0;
      return works && next > STDERR_FILENO ? 7 : 1;
    };
    const std::optional<int> end = WaitForEnd(Fork(program));
    ASSERT_TRUE(end.has_value() && WIFEXITED(*end));
    EXPECT_EQ(WEXITSTATUS(*end), 7) << only;
  }
}

void IgnoreOnce(int /*signal*/) {}

TEST(SetUpProcessTest, Usr1DoesNotKillAndAHandlerStays) {
  for (const bool handled : {false, true}) {
    const auto program = [handled] {
      std::signal(SIGUSR1, handled ? IgnoreOnce : SIG_DFL);
      SetUpProcess();
      raise(SIGUSR1);
      return std::signal(SIGUSR1, SIG_DFL) == (handled ? IgnoreOnce : SIG_IGN) ? 7 : 1;
    };
    const std::optional<int> end = WaitForEnd(Fork(program));
    ASSERT_TRUE(end.has_value() && WIFEXITED(*end)) << handled;
    EXPECT_EQ(WEXITSTATUS(*end), 7) << handled;
  }
}

// A caller that cannot ignore it for the program blocks it. One that has come does not kill.
TEST(SetUpProcessTest, Usr1ThatTheCallerHasBlockedIsHeardFromNowOn) {
  const auto program = [] {
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    raise(SIGUSR1);
    SetUpProcess();
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, nullptr, &now);
    return sigismember(&now, SIGUSR1) == 0 ? 7 : 1;
  };
  const std::optional<int> end = WaitForEnd(Fork(program));
  ASSERT_TRUE(end.has_value() && WIFEXITED(*end));
  EXPECT_EQ(WEXITSTATUS(*end), 7);
}

// ---- no thread, no memory ----------------------------------------------------------------------

TEST(ExhaustionTest, ExceptionsAreStatuses) {
  const auto thrown = [](const auto& body) {
    return CatchExceptions([&]() -> absl::Status {
      body();
      return absl::OkStatus();
    });
  };
  EXPECT_TRUE(thrown([] {}).ok());
  const absl::Status memory = thrown([] { throw std::bad_alloc(); });
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()), HasSubstr("out of memory; hint: "));
  const absl::Status thread = thrown([] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  });
  EXPECT_EQ(thread.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(thread.message()), HasSubstr("cannot start a thread; hint: "));
  const absl::Status files =
      thrown([] { throw std::system_error(std::make_error_code(std::errc::too_many_files_open)); });
  EXPECT_EQ(files.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(files.message()), HasSubstr("no more open files; hint: raise ulimit -n"));
  const absl::Status other = thrown([] { throw std::runtime_error("odd"); });
  EXPECT_EQ(other, absl::InternalError("odd"));
  EXPECT_EQ(thrown([] { throw 3; }).code(), absl::StatusCode::kInternal);
}

// How `program`, a process of its own, ends under a limit, and what it says.
struct Ended {
  int code = -1, signal = 0;
  std::string said;
};
int NobodyCatches(const std::function<int()>& program) noexcept { return program(); }
Ended RunLimited(int resource, rlim_t most, const std::function<int()>& program) {
  int fds[2];
  EXPECT_EQ(pipe(fds), 0);
  const pid_t child = Fork([&] {
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    // A limit of processes is none for the super-user.
    const int nobody = 65533;
    if (resource == RLIMIT_NPROC && geteuid() == 0 && setuid(nobody) != 0) return 9;
    const rlimit limit = {most, most};
    if (setrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return 9;
    EndInOneLine();
    return NobodyCatches(program);  // else the test framework would
  });
  close(fds[1]);
  Ended ended;
  char bytes[4096];
  for (ssize_t n; (n = read(fds[0], bytes, sizeof bytes)) > 0;) {
    ended.said.append(bytes, static_cast<size_t>(n));
  }
  close(fds[0]);
  const std::optional<int> status = WaitForEnd(child);
  if (status.has_value() && WIFEXITED(*status)) ended.code = WEXITSTATUS(*status);
  if (status.has_value() && WIFSIGNALED(*status)) ended.signal = WTERMSIG(*status);
  return ended;
}

TEST(ExhaustionTest, AProgramWithoutThreadsSaysSoInOneLine) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory and threads of its own";
  const Ended status = RunLimited(RLIMIT_NPROC, 1, [] {
    const absl::Status can = CanStartThreads(2);
    std::fprintf(stderr, "%s\n", std::string(can.message()).c_str());
    return absl::IsResourceExhausted(can) ? 7 : 1;
  });
  EXPECT_EQ(status.code, 7) << status.said;
  EXPECT_THAT(status.said, HasSubstr("cannot start a thread; hint: raise ulimit -u, now 1"));
  // Nobody catches it, and a library that aborts.
  const auto uncaught = [] {
    std::thread never([] {});
    never.join();
    return 0;
  };
  for (const std::function<int()>& program :
       {std::function<int()>(uncaught), std::function<int()>([] {
          std::abort();
          return 0;
        })}) {
    const Ended ended = RunLimited(RLIMIT_NPROC, 1, program);
    EXPECT_EQ(ended.code, 1) << ended.signal << ended.said;
    EXPECT_THAT(ended.said, MatchesRegex("process_test: cannot start a thread; hint: .*\n"));
  }
}

TEST(ExhaustionTest, AProgramWithoutMemorySaysSoInOneLine) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory and threads of its own";
  const Ended ended = RunLimited(RLIMIT_AS, rlim_t{1} << 30, [] {
    std::vector<std::string> all;
    for (;;) all.emplace_back(size_t{1} << 20, 'x');
    return 0;
  });
  EXPECT_EQ(ended.code, 1) << ended.signal << ended.said;
  EXPECT_EQ(ended.said, "process_test: out of memory; hint: raise ulimit -v, now 1048576 KiB\n");
  // Libraries that have not begun yet, one of which would wait without an end.
  const Ended early = RunLimited(RLIMIT_AS, rlim_t{1} << 20, [] {
    EndInOneLineEarly();
    return 0;
  });
  EXPECT_EQ(early.code, 1) << early.signal << early.said;
  EXPECT_EQ(early.said, "process_test: out of memory; hint: raise ulimit -v, now 1024 KiB\n");
}

TEST(ExhaustionTest, OtherAbortsStayWhatTheyAre) {
  const Ended ended = RunLimited(RLIMIT_CORE, 0, [] {
    TANDEM_CHECK(false);
    return 0;
  });
  EXPECT_EQ(ended.signal, SIGABRT) << ended.said;
  EXPECT_THAT(ended.said, HasSubstr("CHECK failed"));
}

}  // namespace
}  // namespace tandem
