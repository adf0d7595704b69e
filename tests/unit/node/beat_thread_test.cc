// What a process says of its loops in a beat.
#include "node/beat_thread.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(LoopWatchTest, ProgressMeansThatEveryLoopCameRound) {
  node::LoopProgress first, second;
  node::LoopWatch watch({&first, &second});
  const uint64_t before = watch.Look().progress();
  first.Advance(7);
  second.Advance(3);
  const Beat moved = watch.Look();
  EXPECT_GT(moved.progress(), before);
  EXPECT_EQ(moved.step(), 7u);
  // One goes on, the other is stuck; that it was ahead once does not hide it.
  for (int i = 0; i < 100; ++i) first.Advance(7);
  for (int beat = 0; beat < 20; ++beat) {
    first.Advance(7);
    EXPECT_EQ(watch.Look().progress(), moved.progress());
  }
  second.Advance(3);
  EXPECT_GT(watch.Look().progress(), moved.progress());
}

TEST(LoopWatchTest, WhoWaitsForSomebodySpeaksForAll) {
  node::LoopProgress first, second, third;
  node::LoopWatch watch({&first, &second, &third});
  EXPECT_EQ(watch.Look().activity(), "");
  second.SetActivity({"at work", {}});
  EXPECT_EQ(watch.Look().activity(), "at work");
  EXPECT_EQ(watch.Look().waits_for(), 0u);
  third.SetActivity({"waits for worker 1 at step 4", EndpointId::Worker(1)});
  EXPECT_EQ(watch.Look().activity(), "waits for worker 1 at step 4");
  EXPECT_EQ(EndpointId::Unpack(watch.Look().waits_for()), EndpointId::Worker(1));
}

}  // namespace
}  // namespace tandem
