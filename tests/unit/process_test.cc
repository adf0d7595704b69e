// A thread that stays on some processors: which ones, and that its children stay there, too.
#include "base/process.h"

#include <sched.h>

#include <functional>
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

}  // namespace
}  // namespace tandem
