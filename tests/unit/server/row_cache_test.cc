// What a worker keeps of rows: when a read may have them, what a refresh says of them, and that one
// that is lost, late, doubled, or of another owner never makes a row look newer than it is.
#include "client/row_cache.h"

#include <memory>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/server/core_fixture.h"

namespace tandem {
namespace {

constexpr int kBound = 3;

class RowCacheTest : public ::testing::Test {
 protected:
  RowCacheTest() { Start(); }
  void Start(const std::string& more = "train { batch_size: 4 prefetch_steps: 0 }") {
    plan_ = CorePlan("kind: ESSP bound: 3", 2, 2, more);
    map_ = CoreView(plan_, 1);
    cache_ = std::make_unique<client::RowCache>(plan_);
    cache_->OnView(*map_);
    keys_ = KeysIn(*map_, plan_, 0, 3);
  }

  // Key i is sent as {value, value}.
  void Pulled(size_t i, int64_t step, int64_t version, int64_t clock, float value) {
    const float row[] = {value, value};
    cache_->OnPulled(0, step, version, clock, {&keys_[i], 1}, row);
  }
  void Pushed(size_t i, int64_t step) {
    cache_->OnPushBegun(0, step);
    cache_->OnPushed(0, step, {&keys_[i], 1});
  }
  struct Told {
    uint64_t number = 1;
    int64_t version = 0, clock = 0, own = 0;
    std::vector<size_t> changed = {}, dropped = {};
    float value = 0;
    uint64_t view = 1, incarnation = 5;
    uint8_t flags = 0;
  };
  ParsedFrame Frame(const Told& told) {
    FrameHeader h;
    h.kind = FrameKind::kRefresh;
    h.sender = EndpointId::Shard(0, 0);
    h.incarnation = told.incarnation;
    h.request = told.number;
    h.step = told.own;
    h.samples = told.view;
    h.flags = told.flags;
    std::vector<SliceEntry> entries(told.dropped.empty() ? 1 : 2);
    std::vector<uint64_t> keys;
    for (const size_t i : told.changed) keys.push_back(keys_[i]);
    for (const size_t i : told.dropped) keys.push_back(keys_[i]);
    entries[0].rows = static_cast<uint32_t>(told.changed.size());
    entries[0].row_floats = told.changed.empty() ? 0 : 2;
    entries[0].version = told.version;
    entries[0].clock = told.clock;
    if (!told.dropped.empty()) entries[1].rows = static_cast<uint32_t>(told.dropped.size());
    const std::vector<float> values(2 * told.changed.size(), told.value);
    return Decoded(EncodeDataFrame(buffers_, h, entries, BufferOf(buffers_, keys),
                                   BufferOf(buffers_, values)));
  }
  void Tell(const Told& told) { cache_->OnRefresh(Frame(told)); }

  // The value that a read for `step` may have; -1: none.
  float Value(size_t i, int64_t step) {
    const float* const row = cache_->Find(0, keys_[i], step, &version_);
    return row == nullptr ? -1 : row[1];
  }

  job::ResolvedJob plan_;
  HeapBufferSource buffers_;
  std::shared_ptr<const RangeMap> map_;
  std::unique_ptr<client::RowCache> cache_;
  std::vector<uint64_t> keys_;
  int64_t version_ = 0;
};

TEST_F(RowCacheTest, ARowThatWasReadIsGoodForTheBound) {
  EXPECT_EQ(Value(0, 4), -1);
  Pulled(0, /*step=*/4, /*version=*/9, /*clock=*/3, 7);
  EXPECT_EQ(Value(0, 5), 7);
  EXPECT_EQ(version_, 9);
  EXPECT_EQ(Value(0, 3 + kBound), 7);
  EXPECT_EQ(Value(0, 4 + kBound), -1) << "a step of somebody else may be missing";
}

TEST_F(RowCacheTest, ARefreshMakesAllItDoesNotNameAsNewAsItself) {
  Pulled(0, 4, 9, 3, 7);
  Pulled(1, 4, 9, 3, 8);
  Tell({.number = 1, .version = 12, .clock = 5, .own = 5});  // the first word of this owner
  EXPECT_EQ(cache_->rows(), 0u);
  Pulled(0, 6, 13, 5, 7);
  Pulled(1, 6, 13, 5, 8);
  Tell({.number = 2, .version = 16, .clock = 8, .own = 9, .changed = {1}, .value = 20});
  EXPECT_EQ(Value(0, 8 + kBound), 7);
  EXPECT_EQ(version_, 16);
  EXPECT_EQ(Value(1, 8 + kBound), 20);
  EXPECT_EQ(Value(1, 9 + kBound), -1);
}

TEST_F(RowCacheTest, WhatTheWorkerHasPushedWaitsForARefreshThatHasIt) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pulled(0, 4, 9, 3, 7);
  Pulled(1, 4, 9, 3, 8);
  Pushed(0, 4);
  EXPECT_EQ(Value(0, 5), -1);
  EXPECT_EQ(Value(1, 5), 8);
  // Its own steps below 5 are in, but of those of step 4 a refresh says nothing yet.
  Tell({.number = 2, .version = 12, .clock = 5, .own = 5});
  EXPECT_EQ(Value(0, 5), -1);
  Tell({.number = 3, .version = 14, .clock = 6, .own = 6, .changed = {0}, .value = 9});
  EXPECT_EQ(Value(0, 6), 9);
  EXPECT_EQ(version_, 14);
  Pushed(0, 6);
  EXPECT_EQ(Value(0, 7), -1);
}

// At depth 2 a read for step k need not see the worker's own k - 1 and k - 2.
TEST_F(RowCacheTest, OwnPushesWithinTheDepthMayBeMissing) {
  Start("train { batch_size: 4 prefetch_steps: 2 }");
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pulled(0, 6, 9, 4, 7);  // has its own steps below 4
  Pushed(0, 5);
  EXPECT_EQ(Value(0, 6), 7);
  EXPECT_EQ(Value(0, 7), -1);
}

TEST_F(RowCacheTest, AGapDropsAll) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pulled(0, 4, 9, 3, 7);
  Tell({.number = 3, .version = 16, .clock = 4, .own = 5, .changed = {1}, .value = 2});
  EXPECT_EQ(Value(0, 4), -1);
  EXPECT_EQ(Value(1, 4), 2) << "what it brings is as good as any";
  Tell({.number = 2, .version = 12, .clock = 4, .own = 4, .changed = {1}, .value = 1});
  EXPECT_EQ(Value(1, 4), 2) << "late";
  Tell({.number = 3, .version = 16, .clock = 9, .own = 9});
  EXPECT_EQ(Value(1, 4 + kBound), 2);
  EXPECT_EQ(Value(1, 9 + kBound), -1) << "doubled";
}

TEST_F(RowCacheTest, AnotherOwnerBeginsAnew) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1, .view = 3});
  Pulled(0, 4, 9, 3, 7);
  Tell({.number = 2, .version = 10, .clock = 4, .own = 4, .view = 2});
  EXPECT_EQ(Value(0, 4 + kBound), -1) << "the owner before";
  EXPECT_EQ(Value(0, 3 + kBound), 7);
  Tell({.number = 2, .version = 10, .clock = 4, .own = 4, .view = 4});
  EXPECT_EQ(Value(0, 4), -1) << "the next one does not know what is kept";
  Pulled(0, 5, 12, 4, 8);
  Tell({.number = 3, .version = 13, .clock = 5, .own = 5, .view = 4, .incarnation = 6});
  EXPECT_EQ(Value(0, 5), -1) << "another process";
}

TEST_F(RowCacheTest, AnAnswerThatARefreshHasOvertakenIsNotKept) {
  Tell({.number = 1, .version = 10, .clock = 4, .own = 4});
  Pulled(0, 5, 9, 3, 7);
  EXPECT_EQ(Value(0, 5), -1);
  Pulled(0, 5, 10, 4, 8);
  EXPECT_EQ(Value(0, 5), 8);
  Tell({.number = 2, .version = 12, .clock = 5, .own = 5, .changed = {0}, .value = 9});
  Pulled(0, 5, 10, 4, 8);
  EXPECT_EQ(Value(0, 5), 9);
}

TEST_F(RowCacheTest, OfARowThatCameAnewNoEarlierPushIsForgotten) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pushed(0, 6);  // it is not here
  Pulled(0, 6, 9, 5, 7);
  EXPECT_EQ(Value(0, 7), -1);
  Tell({.number = 2, .version = 12, .clock = 7, .own = 7});
  EXPECT_EQ(Value(0, 7), -1);
  Tell({.number = 3, .version = 14, .clock = 8, .own = 8, .changed = {0}, .value = 9});
  EXPECT_EQ(Value(0, 8), 9);
}

TEST_F(RowCacheTest, PartsOfARefreshCountWhenTheLastIsHere) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pulled(0, 4, 9, 3, 7);
  Pulled(1, 4, 9, 3, 8);
  Tell({.number = 2,
        .version = 12,
        .clock = 6,
        .own = 6,
        .changed = {1},
        .value = 9,
        .flags = kFlagMore});
  EXPECT_EQ(Value(0, 6 + kBound), -1);
  EXPECT_EQ(Value(1, 6 + kBound), 9);
  Tell({.number = 3, .version = 12, .clock = 6, .own = 6, .changed = {2}, .value = 10});
  EXPECT_EQ(Value(0, 6 + kBound), 7);
  EXPECT_EQ(Value(2, 6 + kBound), 10);
}

TEST_F(RowCacheTest, AnswersFromBeforeAGapAreNotTakenBetweenPartsEither) {
  Tell({.number = 1, .version = 4, .clock = 1, .own = 1});
  Tell({.number = 3,
        .version = 12,
        .clock = 6,
        .own = 6,
        .changed = {1},
        .value = 9,
        .flags = kFlagMore});
  Pulled(0, 4, 9, 3, 7);  // the one that is missing may have changed it
  EXPECT_EQ(Value(0, 4), -1);
  EXPECT_EQ(Value(1, 6), 9);
}

TEST_F(RowCacheTest, WhatIsNotKeptAnyMoreIsDropped) {
  Tell({.number = 1, .version = 1, .clock = 1, .own = 1});
  Pulled(0, 4, 9, 3, 7);
  Pulled(1, 4, 9, 3, 8);
  Tell({.number = 2, .version = 9, .clock = 4, .own = 4, .dropped = {0}});
  EXPECT_EQ(Value(0, 4), -1);
  EXPECT_EQ(Value(1, 4), 8);
  Pulled(2, 4, 9, 4, 10);
  EXPECT_EQ(Value(1, 4), 8) << "its place is its own";
  EXPECT_EQ(Value(2, 4), 10);
  EXPECT_EQ(cache_->rows(), 2u);
}

// Between refreshes the version need not have moved: a read that the server has answered before is
// then of the same one as its word, and may come after it. To keep its row would be to keep what
// nobody tells of.
TEST_F(RowCacheTest, AnAnswerThatTheWordOfDroppedRowsHasOvertakenIsNotKept) {
  Tell({.number = 1, .version = 4, .clock = 3, .own = 3});
  Pulled(1, 4, 9, 3, 8);
  const Told dropped = {
      .number = 2, .version = 9, .clock = 3, .own = 4, .dropped = {0}, .flags = kFlagMore};
  Tell(dropped);
  EXPECT_EQ(Value(1, 4), 8) << "it speaks of no other row";
  Pulled(0, 4, 9, 3, 7);
  EXPECT_EQ(Value(0, 4), -1);
  Pulled(0, 4, 10, 3, 9);
  EXPECT_EQ(Value(0, 4), 9) << "read after it";
  // Nor is it, when the refresh of the next version has come.
  Tell({.number = 3, .version = 12, .clock = 5, .own = 5, .dropped = {0}});
  Pulled(0, 5, 9, 3, 7);
  EXPECT_EQ(Value(0, 5), -1);
  Pulled(0, 5, 12, 5, 10);
  EXPECT_EQ(Value(0, 5), 10);
  // As the first word of another owner it is of the version at which the range came there, at which
  // the one before may have answered, too.
  Told moved = dropped;
  moved.number = 1;
  moved.view = 2;
  moved.version = 12;
  Tell(moved);
  Pulled(0, 5, 12, 5, 10);
  EXPECT_EQ(Value(0, 5), -1);
}

TEST_F(RowCacheTest, WhatMakesNoSenseIsIgnored) {
  const auto refused = [&](const Told& told, const auto& change) {
    ParsedFrame frame = Frame(told);
    change(&frame);
    cache_->OnRefresh(frame);
    EXPECT_EQ(cache_->rows(), 0u);
  };
  const Told good = {.number = 1, .version = 4, .clock = 1, .own = 1, .changed = {0}, .value = 2};
  refused(good, [](ParsedFrame* f) { f->header.sender = EndpointId::Worker(1); });
  refused(good, [](ParsedFrame* f) { f->header.group = 1; });
  refused(good, [](ParsedFrame* f) { f->header.step = -1; });
  refused(good, [](ParsedFrame* f) { f->header.samples = 0; });
  refused(good, [](ParsedFrame* f) { f->header.request = 0; });
  Told bad = good;
  bad.version = -1;
  refused(bad, [](ParsedFrame*) {});
  bad = good;
  bad.clock = -1;
  refused(bad, [](ParsedFrame*) {});
  Tell(good);
  EXPECT_EQ(cache_->rows(), 1u);
}

// Whatever entries a peer makes up, nothing is read or written that is not there.
TEST_F(RowCacheTest, SurvivesAnyEntries) {
  Random random(TestSeed());
  for (int round = 0; round < 20000; ++round) {
    std::vector<SliceEntry> entries(random.Uniform(4));
    size_t keys = 0, floats = 0;
    for (SliceEntry& e : entries) {
      e.range = static_cast<uint32_t>(random.Uniform(10));
      e.rows = static_cast<uint32_t>(random.Uniform(4));
      e.row_floats = static_cast<uint32_t>(random.Bernoulli(0.8) ? 2 : random.Uniform(2000));
      e.version = static_cast<int64_t>(random.Uniform(50)) - 3;
      e.clock = static_cast<int64_t>(random.Uniform(50)) - 3;
      keys += e.rows;
      floats += size_t{e.rows} * e.row_floats;
    }
    FrameHeader h;
    h.kind = FrameKind::kRefresh;
    h.sender = EndpointId::Shard(0, 0);
    h.request = random.Uniform(40);
    h.samples = random.Uniform(4);
    h.step = static_cast<int64_t>(random.Uniform(50));
    h.flags = random.Bernoulli(0.2) ? kFlagMore : 0;
    std::vector<uint64_t> some(keys);
    for (uint64_t& key : some) key = random.Uniform(20);
    cache_->OnRefresh(Decoded(EncodeDataFrame(buffers_, h, entries, BufferOf(buffers_, some),
                                              BufferOf(buffers_, std::vector<float>(floats)))));
    int64_t version = 0;
    for (uint32_t range = 0; range < 4; ++range) {
      const float* const row = cache_->Find(range, random.Uniform(20), 20, &version);
      EXPECT_TRUE(row == nullptr || row[0] + row[1] == 0);
    }
  }
}

}  // namespace
}  // namespace tandem
