// Who keeps which rows, and what they are sent.
#include "server/subscriptions.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/policy.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Keys = std::vector<uint64_t>;

class SubscriptionsTest : public ::testing::Test {
 protected:
  Keys Changed(int rank, int64_t own) {
    kept_->Take(rank, own, &changed_, &dropped_);
    return changed_;
  }
  std::unique_ptr<server::Subscriptions> kept_ = std::make_unique<server::Subscriptions>(2, 0);
  Keys changed_, dropped_;
};

TEST_F(SubscriptionsTest, WhoKeepsARowIsSentItWhenItHasChangedAndOnce) {
  EXPECT_FALSE(kept_->Keeps(0));
  kept_->OnRead(0, 3, Keys{10, 11, 12});
  EXPECT_TRUE(kept_->Keeps(0));
  EXPECT_FALSE(kept_->Keeps(1));
  EXPECT_THAT(Changed(0, 4), IsEmpty());
  kept_->OnUpdate(1, 3, Keys{11, 13}, true);
  kept_->OnUpdate(1, 4, Keys{11}, true);
  EXPECT_THAT(Changed(0, 4), ElementsAre(11));
  EXPECT_THAT(Changed(0, 4), IsEmpty());
  EXPECT_THAT(Changed(1, 4), IsEmpty());
}

TEST_F(SubscriptionsTest, AnotherProcessOfAWorkerKeepsNothingYet) {
  kept_->OnRead(0, 1, Keys{1, 2});
  kept_->OnChanged(Keys{1});
  EXPECT_EQ(kept_->NextNumber(0), 1u);
  kept_->Forget(0);
  EXPECT_FALSE(kept_->Keeps(0));
  EXPECT_THAT(Changed(0, 100), IsEmpty());
  EXPECT_EQ(kept_->NextNumber(0), 1u);
}

TEST_F(SubscriptionsTest, WhatItHasPushedInItsLastStepWaits) {
  kept_->OnRead(0, 3, Keys{10, 11});
  kept_->OnUpdate(0, 3, Keys{10}, true);
  EXPECT_THAT(Changed(0, 4), IsEmpty());
  kept_->OnUpdate(0, 4, Keys{11}, true);
  EXPECT_THAT(Changed(0, 5), ElementsAre(10));
  kept_->OnUpdate(0, 5, Keys{11}, true);
  EXPECT_THAT(Changed(0, 6), IsEmpty()) << "used at every step";
  EXPECT_THAT(Changed(0, 8), ElementsAre(11));
}

// An answer may be lost.
TEST_F(SubscriptionsTest, AReadDoesNotMakeAChangeKnown) {
  kept_->OnRead(0, 3, Keys{10});
  kept_->OnUpdate(1, 3, Keys{10}, true);
  kept_->OnRead(0, 4, Keys{10});
  EXPECT_THAT(Changed(0, 4), ElementsAre(10));
}

TEST_F(SubscriptionsTest, WhatDoesNotChangeIsNotSent) {
  kept_->OnRead(0, 3, Keys{10});
  kept_->OnUpdate(0, 3, Keys{10}, false);
  kept_->OnUpdate(1, 3, Keys{10}, false);
  EXPECT_THAT(Changed(0, 9), IsEmpty());
  kept_->OnChanged(Keys{10});
  EXPECT_THAT(Changed(0, 9), ElementsAre(10));
}

TEST_F(SubscriptionsTest, TheRowsUsedLastAreKept) {
  kept_ = std::make_unique<server::Subscriptions>(2, 3);
  kept_->OnRead(0, 1, Keys{10, 11});
  kept_->OnRead(0, 2, Keys{12});
  kept_->OnUpdate(0, 3, Keys{10}, true);
  kept_->OnRead(0, 4, Keys{13});
  kept_->OnUpdate(1, 4, Keys{10, 11, 12, 13}, true);
  EXPECT_THAT(Changed(0, 9), UnorderedElementsAre(10, 12, 13));
  EXPECT_THAT(dropped_, ElementsAre(11));
  EXPECT_THAT(Changed(0, 9), IsEmpty());
  EXPECT_THAT(dropped_, IsEmpty());
  kept_->OnRead(0, 5, Keys{20, 21, 22, 23, 24});  // more at once than may be
  (void)Changed(0, 9);
  EXPECT_THAT(dropped_, SizeIs(5));
}

// Of a row that was dropped before it was sent, and is kept again, all that follows is told.
TEST_F(SubscriptionsTest, ARowThatComesBackIsToldOfOnceMore) {
  kept_ = std::make_unique<server::Subscriptions>(2, 1);
  kept_->OnRead(0, 1, Keys{10});
  kept_->OnUpdate(1, 1, Keys{10}, true);
  kept_->OnRead(0, 2, Keys{11});
  kept_->OnRead(0, 3, Keys{10});
  kept_->OnUpdate(1, 3, Keys{10}, true);
  EXPECT_THAT(Changed(0, 9), ElementsAre(10));
  EXPECT_THAT(dropped_, ElementsAre(10, 11));
}

// Without a refresh, as while somebody is out of data.
TEST_F(SubscriptionsTest, WhatIsNotKeptIsToldBeforeItIsMuch) {
  kept_ = std::make_unique<server::Subscriptions>(2, 16);
  size_t told = 0, waiting = 0;
  for (uint64_t key = 0; key < 1000; ++key) {
    EXPECT_FALSE(kept_->MustForget(0)) << key;
    kept_->OnRead(0, static_cast<int64_t>(key), Keys{key, key % 3});
    kept_->OnUpdate(1, static_cast<int64_t>(key), Keys{key, key % 3}, true);
    if (!kept_->MustForget(0)) continue;
    kept_->TakeDropped(0, &dropped_);
    EXPECT_GT(dropped_.size(), 8u);
    EXPECT_LE(dropped_.size(), 12u);
    told += dropped_.size();
  }
  const Keys changed = Changed(0, 2000);
  waiting = changed.size();
  EXPECT_LE(waiting, 16u) << "no row that is not kept, and none twice";
  EXPECT_EQ(told + dropped_.size() + waiting, 1000u);
  EXPECT_FALSE(kept_->MustForget(1));
}

TEST_F(SubscriptionsTest, WhoIsOutOfDataHoldsTheClockBack) {
  policies::RangeProgress progress;
  progress.workers = {{1, 9, 9, false}, {1, 4, 4, true}};
  EXPECT_EQ(server::Subscriptions::ClockOf(progress), 4);
}

TEST_F(SubscriptionsTest, OnlyAClockThatIsLargerGrows) {
  kept_->Begin(7, 4);
  EXPECT_EQ(kept_->view(), 7u);
  EXPECT_FALSE(kept_->Grows(4));
  EXPECT_TRUE(kept_->Grows(5));
  EXPECT_FALSE(kept_->Grows(5));
  EXPECT_TRUE(kept_->Grows(6));
  EXPECT_EQ(kept_->NextNumber(1), 1u);
  EXPECT_EQ(kept_->NextNumber(1), 2u);
  EXPECT_EQ(kept_->NextNumber(0), 1u);
}

}  // namespace
}  // namespace tandem
