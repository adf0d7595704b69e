// A thread that stays on some processors: which ones, and that its children stay there, too. How a
// child process ended, and where that is not to be known.
#include "base/process.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

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

}  // namespace
}  // namespace tandem
