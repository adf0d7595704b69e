// Who keeps which rows, and what they are sent.
#include "server/subscriptions.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/frame.h"
#include "tests/test_seed.h"

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

// A row of version 5 gets too old with version 5 + 3 + 1. Another one is created just after the
// look that has found it absent.
TEST_F(SubscriptionsTest, ARowThatGetsTooOldHasChanged) {
  kept_->set_max_age(3);
  int64_t until[] = {8, -1};  // of rows 10 and 11
  int looks = 0;
  const auto present_until = [&](uint64_t key) {
    ++looks;
    return until[key - 10];
  };
  kept_->OnVersion(5, present_until);
  kept_->OnRead(0, 3, Keys{10, 11});
  kept_->OnVersion(6, present_until);
  EXPECT_EQ(looks, 2);
  EXPECT_THAT(Changed(0, 100), ElementsAre(11)) << "it may have been there when it was read";
  until[1] = 9;  // created at version 6
  for (int64_t version = 7; version <= 8; ++version) kept_->OnVersion(version, present_until);
  EXPECT_EQ(looks, 2);
  until[0] = -1;
  kept_->OnVersion(9, present_until);
  EXPECT_EQ(looks, 4);
  EXPECT_THAT(Changed(0, 100), ElementsAre(10));
  until[1] = -1;
  kept_->OnVersion(10, present_until);
  EXPECT_THAT(Changed(0, 100), ElementsAre(11));
  for (int64_t version = 11; version <= 20; ++version) kept_->OnVersion(version, present_until);
  EXPECT_THAT(Changed(0, 100), IsEmpty()) << "absent as before";
  kept_->Forget(0);
  kept_->OnVersion(100, present_until);
  looks = 0;
  kept_->OnVersion(1000, present_until);
  EXPECT_EQ(looks, 0) << "nobody keeps the rows";
}

// The version may skip more versions than a row stays: one push has many empty steps.
TEST_F(SubscriptionsTest, ARowMayComeAndGoBetweenTwoLooks) {
  kept_->set_max_age(3);
  const auto present_until = [](uint64_t) { return int64_t{-1}; };
  kept_->OnRead(0, 3, Keys{10});
  kept_->OnVersion(6, present_until);
  EXPECT_THAT(Changed(0, 100), ElementsAre(10)) << "it may have been there when it was read";
  kept_->OnUpdate(1, 6, Keys{10}, true);
  EXPECT_THAT(Changed(0, 100), ElementsAre(10)) << "created at version 6";
  kept_->OnVersion(20, present_until);
  EXPECT_THAT(Changed(0, 100), ElementsAre(10)) << "too old";
  for (int64_t version = 21; version <= 40; ++version) kept_->OnVersion(version, present_until);
  EXPECT_THAT(Changed(0, 100), IsEmpty()) << "absent as before";
}

// A worker keeps 16 rows at most, of very many that stay for very long.
TEST_F(SubscriptionsTest, OnlyKeptRowsAreLookedAtLater) {
  kept_ = std::make_unique<server::Subscriptions>(/*workers=*/1, /*most=*/16);
  kept_->set_max_age(int64_t{1} << 30);
  int64_t version = 0;
  const auto present_until = [&version](uint64_t) { return version + (int64_t{1} << 30); };
  for (; version < 1000; ++version) {
    const auto first = static_cast<uint64_t>(4 * version);
    kept_->OnRead(0, version, Keys{7, first + 10, first + 11, first + 12, first + 13});
    kept_->OnVersion(version + 1, present_until);
    ASSERT_LT(kept_->looks(), 200u) << version;
  }
  EXPECT_GE(kept_->looks(), 10u);
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
    EXPECT_THAT(kept_->MustForget(), IsEmpty()) << key;
    kept_->OnRead(0, static_cast<int64_t>(key), Keys{key, key % 3});
    kept_->OnUpdate(1, static_cast<int64_t>(key), Keys{key, key % 3}, true);
    EXPECT_EQ(kept_->OwesRefresh(0), !kept_->MustForget().empty());
    if (kept_->MustForget().empty()) continue;
    EXPECT_THAT(kept_->MustForget(), ElementsAre(0));
    kept_->TakeDropped(0, &dropped_);
    EXPECT_GT(dropped_.size(), 8u);
    EXPECT_LE(dropped_.size(), 12u);
    told += dropped_.size();
  }
  const Keys changed = Changed(0, 2000);
  waiting = changed.size();
  EXPECT_LE(waiting, 16u) << "no row that is not kept, and none twice";
  EXPECT_EQ(told + dropped_.size() + waiting, 1000u);
  EXPECT_THAT(kept_->MustForget(), IsEmpty());
}

// The same by a look at each worker for each row.
class PlainSubscriptions {
 public:
  PlainSubscriptions(int workers, size_t most)
      : most_(most), workers_(static_cast<size_t>(workers)) {}

  void Forget(int rank) { At(rank) = Worker(); }
  void OnRead(int rank, int64_t step, const Keys& keys) {
    Worker& worker = At(rank);
    for (const uint64_t key : keys) {
      worker.rows[key].used = std::max(worker.rows[key].used, step);
    }
    if (worker.rows.size() <= most_) return;
    std::vector<std::pair<int64_t, uint64_t>> by_use;
    for (const auto& [key, row] : worker.rows) by_use.push_back({row.used, key});
    std::sort(by_use.begin(), by_use.end());
    by_use.resize(by_use.size() - (most_ - most_ / 8));
    for (const auto& [used, key] : by_use) {
      worker.rows.erase(key);
      worker.dropped.push_back(key);
      std::erase(worker.changed, key);
    }
  }
  void OnUpdate(int rank, int64_t step, const Keys& keys) {
    for (const uint64_t key : keys) {
      for (Worker& worker : workers_) {
        const auto it = worker.rows.find(key);
        if (it == worker.rows.end() || std::exchange(it->second.changed, true)) continue;
        worker.changed.push_back(key);
      }
      const auto own = At(rank).rows.find(key);
      if (own == At(rank).rows.end()) continue;
      own->second.pushed = std::max(own->second.pushed, step);
      own->second.used = std::max(own->second.used, step);
    }
  }
  void Take(int rank, int64_t own, Keys* changed, Keys* dropped) {
    Worker& worker = At(rank);
    *dropped = std::exchange(worker.dropped, {});
    changed->clear();
    for (const uint64_t key : std::exchange(worker.changed, {})) {
      Row& row = worker.rows[key];
      row.changed = row.pushed >= own - kRefreshLag;
      (row.changed ? worker.changed : *changed).push_back(key);
    }
  }
  std::vector<int> MustForget() const {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      if (2 * workers_[rank].dropped.size() > most_) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }

 private:
  struct Row {
    int64_t pushed = -1, used = 0;
    bool changed = false;
  };
  struct Worker {
    std::map<uint64_t, Row> rows;
    Keys changed, dropped;
  };
  Worker& At(int rank) { return workers_[static_cast<size_t>(rank)]; }

  const size_t most_;
  std::vector<Worker> workers_;
};

TEST_F(SubscriptionsTest, AgreesWithALookAtEachWorker) {
  constexpr int kWorkers = 5;
  constexpr size_t kMax = 12;
  Random random(TestSeed());
  kept_ = std::make_unique<server::Subscriptions>(kWorkers, kMax);
  PlainSubscriptions plain(kWorkers, kMax);
  Keys want_changed, want_dropped;
  size_t told = 0, forgotten = 0;
  for (int64_t step = 0; step < 20'000; ++step) {
    const int rank = static_cast<int>(random.Uniform(kWorkers));
    Keys keys;
    for (uint64_t key = random.Uniform(8); key < 40; key += 1 + random.Uniform(16)) {
      keys.push_back(key);
    }
    const uint64_t what = random.Uniform(100);
    if (what < 40) {
      kept_->OnRead(rank, step, keys);
      plain.OnRead(rank, step, keys);
    } else if (what < 80) {
      kept_->OnUpdate(rank, step, keys, /*changed=*/true);
      plain.OnUpdate(rank, step, keys);
    } else if (what < 99) {
      const int64_t own = step - static_cast<int64_t>(random.Uniform(20));
      plain.Take(rank, own, &want_changed, &want_dropped);
      ASSERT_EQ(Changed(rank, own), want_changed) << step;
      ASSERT_EQ(dropped_, want_dropped) << step;
      told += changed_.size();
      forgotten += dropped_.size();
    } else {
      kept_->Forget(rank);
      plain.Forget(rank);
    }
    ASSERT_THAT(kept_->MustForget(), ::testing::ElementsAreArray(plain.MustForget())) << step;
  }
  EXPECT_GT(told, 1000u);
  EXPECT_GT(forgotten, 1000u);
}

TEST_F(SubscriptionsTest, OnlyAClockThatIsLargerGrows) {
  kept_->Begin(7, 4);
  EXPECT_EQ(kept_->view(), 7u);
  EXPECT_FALSE(kept_->OwesRefresh(4));
  EXPECT_TRUE(kept_->OwesRefresh(5));
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
