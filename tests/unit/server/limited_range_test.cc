// Rows that come and go in whole ranges: what counts as one update, the same rows for any cut of a
// table into ranges, resumed runs, moves, workers that keep rows, and row numbers that are used
// again.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "server/range.h"
#include "server/rows/row_limiter.h"
#include "tests/test_seed.h"
#include "tests/unit/server/range_image.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Keys = std::vector<uint64_t>;
using Rows = std::vector<uint32_t>;

constexpr int kWorkers = 4;

Policy PolicyOf(Policy::Kind kind, int delay = 0) {
  Policy config;
  config.set_kind(kind);
  if (kind == Policy::FIXED_DELAY) config.set_delay(delay);
  if (kind == Policy::ESSP) config.set_bound(2);
  if (kind == Policy::DC_ASGD) config.set_compensation(0.5);
  return config;
}

void Count(int threshold, int64_t within, job::TablePlan* plan) {
  plan->admission.set_kind(Admission::COUNT);
  plan->admission.set_threshold(threshold);
  plan->admission.set_within_versions(within);
}
void Age(int64_t versions, job::TablePlan* plan) {
  plan->eviction.set_kind(Eviction::AGE);
  plan->eviction.set_versions(versions);
}
void Lru(int64_t max_rows, job::TablePlan* plan) {
  plan->eviction.set_kind(Eviction::LRU);
  plan->eviction.set_max_rows(max_rows);
}

// The contents of all ranges of the table.
struct Contents {
  Keys keys;
  std::vector<float> weights, slots;
  std::vector<uint32_t> ages;
  std::vector<server::Candidate> candidates;
  uint64_t admitted = 0, refused = 0;

  friend bool operator==(const Contents&, const Contents&) = default;
};

template <typename T>
void Append(const std::vector<T>& from, std::vector<T>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

class LimitedRangeTest : public ::testing::Test {
 protected:
  LimitedRangeTest() {
    plan_.name = "w";
    plan_.dim = 2;
    plan_.salt = 7;
    plan_.seed = 9;
    plan_.expected_rows = 1;
    Optimizer adagrad;
    adagrad.set_kind(Optimizer::ADAGRAD);
    adagrad.set_learning_rate(0.5);
    optimizer_ = *optim::NewRowOptimizer(adagrad);
    table_.plan = &plan_;
    table_.optimizer = optimizer_.get();
    table_.workers = kWorkers;
    table_.reads = 3;
    table_.record = true;
    table_.records = &records_;
  }

  // Begins anew: the table as ranges that begin at these positions.
  void Use(const Policy& config, const std::vector<uint64_t>& begins = {0}) {
    ranges_.clear();
    records_.clear();
    table_.stats = {};
    policy_ = *policies::NewUpdatePolicy(config, kWorkers);
    table_.policy = policy_.get();
    ranges_ = Cut(begins);
  }
  std::vector<std::unique_ptr<server::Range>> Cut(const std::vector<uint64_t>& begins) {
    std::vector<std::unique_ptr<server::Range>> ranges;
    for (size_t i = 0; i < begins.size(); ++i) {
      const uint64_t end = i + 1 < begins.size() ? begins[i + 1] : 0;
      ranges.push_back(std::make_unique<server::Range>(static_cast<uint32_t>(i), begins[i], end,
                                                       &table_, &scratch_));
    }
    return ranges;
  }

  Keys Inside(const server::Range& range, const Keys& keys) const {
    Keys inside;
    for (const uint64_t key : keys) {
      if (server::InRange(Position(plan_.salt, key), range.begin(), range.end())) {
        inside.push_back(key);
      }
    }
    return inside;
  }
  // One step of one worker, with gradients that follow from the arguments. version_read -1: now.
  void Push(int rank, int64_t step, const Keys& keys, int64_t version_read = -1) {
    for (const auto& range : ranges_) {
      const Keys inside = Inside(*range, keys);
      server::HeldUpdate update;
      update.rank = rank;
      update.step = step;
      update.samples = 1;
      update.version_read = version_read < 0 ? range->progress().version : version_read;
      if (!inside.empty()) {
        update.keys = buffers_.Alloc(inside.size() * sizeof(uint64_t));
        update.values = buffers_.Alloc(2 * inside.size() * sizeof(float));
      }
      for (size_t i = 0; i < inside.size(); ++i) {
        update.keys.MutableAs<uint64_t>()[i] = inside[i];
        const uint64_t seed = HashCombine(static_cast<uint64_t>(4 * step + rank), inside[i]);
        for (uint64_t d = 0; d < 2; ++d) {
          const auto gradient = static_cast<int>(HashCombine(seed, d) % 17) - 8;
          update.values.MutableAs<float>()[2 * i + d] = static_cast<float>(gradient);
        }
      }
      EXPECT_EQ(range->Admit(now_, static_cast<uint64_t>(rank) + 1, step, std::move(update),
                             /*finished=*/false),
                server::Range::Admission::kAdmitted);
    }
  }
  // A step of all workers.
  void Step(int64_t step, const std::vector<Keys>& keys) {
    for (int rank = 0; rank < kWorkers; ++rank) {
      const auto r = static_cast<size_t>(rank);
      Push(rank, step, r < keys.size() ? keys[r] : Keys());
    }
  }
  // Random keys of a worker's step, the same in every run.
  static Keys RandomKeys(uint64_t seed, int64_t step, int rank) {
    Random random(HashCombine(seed, static_cast<uint64_t>(4 * step + rank)));
    Keys keys(random.Uniform(10));
    for (uint64_t& key : keys) key = Mix64(random.Uniform(80));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    for (size_t i = keys.size(); i > 1; --i) std::swap(keys[i - 1], keys[random.Uniform(i)]);
    return keys;
  }
  void RandomSteps(uint64_t seed, int64_t from, int64_t to) {
    for (int64_t step = from; step < to; ++step) {
      std::vector<Keys> keys;
      for (int rank = 0; rank < kWorkers; ++rank) keys.push_back(RandomKeys(seed, step, rank));
      Step(step, keys);
    }
  }

  // The files of a checkpoint.
  std::vector<server::RangeImage> Files() const {
    std::vector<server::RangeImage> files;
    for (const auto& range : ranges_) {
      server::RangeCopy copy = range->Copy(/*for_move=*/false, blocks_);
      range->store().CopyRows(0, std::numeric_limits<size_t>::max(), &copy.rows);
      files.push_back(Decoded(std::move(copy).Encode()));
    }
    return files;
  }
  // Resumes from a checkpoint that is made now, in ranges that begin at these positions.
  void Resume(const std::vector<uint64_t>& begins) {
    const std::vector<server::RangeImage> files = Files();
    ranges_ = Cut(begins);
    for (const server::RangeImage& file : files) {
      for (const auto& range : ranges_) {
        ASSERT_EQ(range->ResumeCheckpoint(file, buffers_), absl::OkStatus());
      }
    }
  }
  Contents All() const {
    Contents all;
    for (const auto& range : ranges_) {
      const server::RangeImage image = ImageOf(*range);
      EXPECT_TRUE(image.limited);
      Append(image.keys, &all.keys);
      Append(image.weights, &all.weights);
      Append(image.slots, &all.slots);
      Append(image.ages, &all.ages);
      Append(image.candidates, &all.candidates);
    }
    all.admitted = table_.stats.rows.admitted;
    all.refused = table_.stats.rows.refused;
    return all;
  }

  server::Range& range() const { return *ranges_[0]; }
  int64_t Size() const { return range().store().size(); }
  bool Has(uint64_t key) const {
    uint32_t row = 0;
    range().store().Find({&key, 1}, {&row, 1});
    return row != server::RowIndex::kNoRow;
  }
  std::vector<float> Row(uint64_t key) const {
    std::vector<float> row(2);
    range().store().Pull({&key, 1}, absl::MakeSpan(row));
    return row;
  }
  void Read(int rank, int64_t step, const Keys& keys) {
    std::vector<float> rows(2 * keys.size());
    range().store().Pull(keys, absl::MakeSpan(rows));
    range().RememberRead(now_, rank, step, keys, rows);
  }
  const server::RowCounts& counts() const { return table_.stats.rows; }

  absl::Time now_ = absl::UnixEpoch();
  job::TablePlan plan_;
  std::unique_ptr<optim::RowOptimizer> optimizer_;
  std::unique_ptr<policies::UpdatePolicy> policy_;
  server::TableContext table_;
  std::vector<server::UpdateRecord> records_;
  server::FoldScratch scratch_;
  HeapBufferSource buffers_;
  std::shared_ptr<server::CopyBlocks> blocks_ = std::make_shared<server::CopyBlocks>();
  std::vector<std::unique_ptr<server::Range>> ranges_;
};

// A step counts once, however many workers have the id, and what comes before the row is dropped.
TEST_F(LimitedRangeTest, AnIdCountsOnceAStep) {
  Count(2, 0, &plan_);
  Use(PolicyOf(Policy::BSP));
  Step(0, {{1}, {1, 2}, {1}, {1}});
  EXPECT_EQ(Size(), 0);
  EXPECT_EQ(range().store().candidates(), 2);
  EXPECT_EQ(counts().refused, 2u);
  Step(1, {{}, {1}});
  EXPECT_EQ(Size(), 1);
  EXPECT_EQ(counts().admitted, 1u);
  EXPECT_EQ(counts().refused, 2u);
  const std::vector<float> row = Row(1);
  plan_.admission.Clear();
  Use(PolicyOf(Policy::BSP));
  Step(0, {});
  Step(1, {{}, {1}});
  EXPECT_EQ(Row(1), row) << "the second update alone";
}

// Each push is an update of its own under ASP.
TEST_F(LimitedRangeTest, AnIdCountsOnceAPushUnderAsp) {
  Count(3, 0, &plan_);
  Use(PolicyOf(Policy::ASP));
  Push(0, 0, {1});
  Push(1, 0, {1});
  EXPECT_FALSE(Has(1));
  Push(2, 0, {1});
  EXPECT_TRUE(Has(1));
}

// Delayed steps are steps of their own, also if the end of the run applies them at once.
TEST_F(LimitedRangeTest, DelayedStepsCountOneByOne) {
  Count(2, 0, &plan_);
  Use(PolicyOf(Policy::FIXED_DELAY, 3));
  Step(0, {{1}});
  Step(1, {{1}, {1}});
  Step(2, {{2}, {2}});
  EXPECT_EQ(Size(), 0);
  range().FinishDelayed();
  EXPECT_TRUE(Has(1));
  EXPECT_FALSE(Has(2));
}

// Under policies without dependence on time, everything follows from the keys and versions: any cut
// gives the same rows, slots, ages and candidates, and so does a run that resumes in other ranges.
TEST_F(LimitedRangeTest, AnyCutAndAnyResumeGiveTheSameBits) {
  const std::vector<std::vector<uint64_t>> cuts = {
      {0}, {0, uint64_t{1} << 62, uint64_t{3} << 62}, {0, 5, uint64_t{1} << 63, ~uint64_t{9}}};
  const std::pair<const char*, void (*)(job::TablePlan*)> rules[] = {
      {"AGE", [](job::TablePlan* plan) { Age(3, plan); }},
      {"COUNT", [](job::TablePlan* plan) { Count(3, 0, plan); }},
      {"COUNT and AGE",
       [](job::TablePlan* plan) {
         Count(2, 4, plan);
         Age(6, plan);
       }},
      {"PROBABILITY and AGE",
       [](job::TablePlan* plan) {
         plan->admission.set_kind(Admission::PROBABILITY);
         plan->admission.set_probability(0.4);
         plan->admission.set_unadmitted(Admission::ZERO);
         Age(5, plan);
       }},
  };
  constexpr int64_t kSteps = 40;
  for (const auto& [name, rule] : rules) {
    plan_.admission.Clear();
    plan_.eviction.Clear();
    rule(&plan_);
    for (const Policy& config : {PolicyOf(Policy::BSP), PolicyOf(Policy::FIXED_DELAY, 2)}) {
      for (uint64_t seed = TestSeed(); seed < TestSeed() + 3; ++seed) {
        SCOPED_TRACE(absl::StrCat(name, " ", config.kind(), "; rerun with --seed=", seed));
        Use(config);
        RandomSteps(seed, 0, kSteps);
        const Contents want = All();
        EXPECT_GT(want.keys.size(), 3u);
        for (const auto& begins : cuts) {
          Use(config, begins);
          RandomSteps(seed, 0, kSteps);
          EXPECT_TRUE(All() == want) << begins.size() << " ranges";
          for (const auto& others : cuts) {
            Use(config, begins);
            const auto at = static_cast<int64_t>(5 + Mix64(seed) % 30);
            RandomSteps(seed, 0, at);
            ASSERT_NO_FATAL_FAILURE(Resume(others));
            RandomSteps(seed, at, kSteps);
            EXPECT_TRUE(All() == want) << begins.size() << " ranges, then " << others.size();
          }
        }
      }
    }
  }
}

// A range takes its ages and candidates along, and a run that starts from a checkpoint begins with
// them at version 0.
TEST_F(LimitedRangeTest, AgesAndCandidatesGoAlong) {
  Count(2, 30, &plan_);
  Age(30, &plan_);
  Use(PolicyOf(Policy::BSP));
  RandomSteps(TestSeed(), 0, 12);
  const server::RangeImage image = ImageOf(range());
  EXPECT_GT(*std::max_element(image.ages.begin(), image.ages.end()), 5u);
  ASSERT_FALSE(image.candidates.empty());
  const auto expect_same = [&](const server::RangeImage& got) {
    EXPECT_EQ(got.keys, image.keys);
    EXPECT_EQ(got.ages, image.ages);
    EXPECT_EQ(got.candidates, image.candidates);
  };
  ranges_ = Cut({0});
  ASSERT_EQ(range().Restore(image, buffers_), absl::OkStatus());
  expect_same(ImageOf(range()));
  ranges_ = Cut({0});
  ASSERT_EQ(range().LoadCheckpoint(image, buffers_), absl::OkStatus());
  range().FinishLoad();
  EXPECT_EQ(range().progress().version, 0);
  expect_same(ImageOf(range()));
  // A job without rules takes the rows alone, and one with shorter ones what is young enough.
  plan_.admission.Clear();
  plan_.eviction.Clear();
  ranges_ = Cut({0});
  ASSERT_EQ(range().LoadCheckpoint(image, buffers_), absl::OkStatus());
  EXPECT_EQ(Size(), static_cast<int64_t>(image.keys.size()));
  EXPECT_FALSE(ImageOf(range()).limited);
  Age(5, &plan_);
  ranges_ = Cut({0});
  ASSERT_EQ(range().LoadCheckpoint(image, buffers_), absl::OkStatus());
  EXPECT_EQ(Size(), std::count_if(image.ages.begin(), image.ages.end(),
                                  [](uint32_t age) { return age <= 5; }));
}

TEST_F(LimitedRangeTest, ACheckpointOfATableWithoutRulesIsYoung) {
  Use(PolicyOf(Policy::BSP));
  Step(0, {{1, 2, 3}});
  for (int64_t step = 1; step < 9; ++step) Step(step, {});
  const server::RangeImage image = ImageOf(range());
  ASSERT_FALSE(image.limited);
  Age(4, &plan_);
  ranges_ = Cut({0});
  ASSERT_EQ(range().ResumeCheckpoint(image, buffers_), absl::OkStatus());
  EXPECT_THAT(ImageOf(range()).ages, ElementsAre(0u, 0u, 0u));
}

TEST_F(LimitedRangeTest, ARangeHasItsShareOfTheRows) {
  Lru(10, &plan_);
  Use(PolicyOf(Policy::ASP), {0, uint64_t{1} << 63});
  for (int64_t step = 0; step < 30; ++step) {
    Keys keys;
    for (uint64_t i = 0; i < 8; ++i) keys.push_back(Mix64(100 * static_cast<uint64_t>(step) + i));
    Push(0, step, keys);
  }
  EXPECT_EQ(ranges_[0]->store().size(), 5);
  EXPECT_EQ(ranges_[1]->store().size(), 5);
}

TEST_F(LimitedRangeTest, AStoreWithoutMoreMemoryEvicts) {
  plan_.eviction.set_kind(Eviction::AT_BUDGET);
  bool full = false;
  table_.may_grow = [&full](size_t) { return !full; };
  Use(PolicyOf(Policy::ASP));
  Push(0, 0, {1, 2, 3});
  Push(0, 1, {2});
  full = true;
  Push(0, 2, {4});
  EXPECT_EQ(Size(), 3);
  EXPECT_TRUE(Has(2));
  EXPECT_TRUE(Has(4));
  EXPECT_EQ(counts().evicted, 1u);
}

// A pull of an id without a row, before its first row and after its last.
TEST_F(LimitedRangeTest, IdsWithoutARowMayReadAsZeros) {
  Count(2, 0, &plan_);
  Age(3, &plan_);
  plan_.admission.set_unadmitted(Admission::ZERO);
  Use(PolicyOf(Policy::ASP));
  EXPECT_THAT(Row(1), ElementsAre(0, 0));
  Push(0, 0, {1});
  EXPECT_THAT(Row(1), ElementsAre(0, 0));
  Push(0, 1, {1});
  EXPECT_NE(Row(1), std::vector<float>(2));
  for (int64_t step = 2; step < 4; ++step) Push(0, step, {});
  EXPECT_NE(Row(1), std::vector<float>(2)) << "three versions old";
  Push(0, 4, {});
  EXPECT_THAT(Row(1), ElementsAre(0, 0));
}

// Rows that a program or a worker sets before training need no updates.
TEST_F(LimitedRangeTest, ARowThatIsSetIsAdmitted) {
  Count(3, 0, &plan_);
  Age(2, &plan_);
  Use(PolicyOf(Policy::ASP));
  EXPECT_TRUE(range().AssignRows(Keys{5}, std::vector<float>{3, 4}, /*with_slots=*/false));
  EXPECT_THAT(Row(5), ElementsAre(3, 4));
  Push(0, 0, {});
  Push(0, 1, {});
  EXPECT_TRUE(Has(5)) << "set at version 0";
  Push(0, 2, {});
  EXPECT_FALSE(Has(5));
}

// A kept row that is too old is sent anew, as a pull would read it, at the version at which it is
// gone, whether or not the sweep has been there.
TEST_F(LimitedRangeTest, KeptRowsThatAreGoneAreSentAnew) {
  Age(3, &plan_);
  Use(PolicyOf(Policy::ESSP));
  server::Subscriptions& kept = *range().subscriptions();
  Keys changed, dropped;
  const auto take = [&] {
    kept.Take(/*rank=*/0, /*own=*/100, &changed, &dropped);
    std::sort(changed.begin(), changed.end());
    return changed;
  };
  Push(1, 0, {1, 2});
  kept.OnRead(0, 0, Keys{1, 2, 3});
  EXPECT_THAT(take(), IsEmpty());
  Push(1, 1, {2});
  EXPECT_THAT(take(), ElementsAre(2, 3)) << "row 3 may have been there at the read";
  Push(1, 2, {});
  EXPECT_THAT(take(), IsEmpty());
  Push(1, 3, {});
  EXPECT_THAT(take(), ElementsAre(1)) << "version 4, and row 1 is of version 0";
  Push(1, 4, {});
  EXPECT_THAT(take(), ElementsAre(2)) << "version 5";
  Push(1, 5, {3});
  EXPECT_THAT(take(), ElementsAre(3)) << "created";
  for (int64_t step = 6; step < 8; ++step) Push(1, step, {});
  EXPECT_THAT(take(), IsEmpty()) << "rows 1 and 2 are absent as before";
  Push(1, 8, {});
  EXPECT_THAT(take(), ElementsAre(3)) << "version 9, and row 3 is of version 5";
  for (int64_t step = 9; step < 30; ++step) Push(1, step, {});
  EXPECT_EQ(Size(), 0) << "the sweep has been there";
  EXPECT_THAT(take(), IsEmpty());
}

TEST_F(LimitedRangeTest, KeptRowsThatAreEvictedAreSentAnew) {
  Lru(2, &plan_);
  Use(PolicyOf(Policy::ESSP));
  server::Subscriptions& kept = *range().subscriptions();
  Push(1, 0, {1, 2});
  kept.OnRead(0, 0, Keys{1, 2});
  Push(1, 1, {2, 3});
  Keys changed, dropped;
  kept.Take(0, 100, &changed, &dropped);
  EXPECT_THAT(changed, ::testing::UnorderedElementsAre(1u, 2u));
  EXPECT_FALSE(Has(1));
}

// Another row gets the number of a row that a worker has read. Its updates are no answer to how
// stale the worker's update is, and the worker's row is fresh.
TEST_F(LimitedRangeTest, RowStalenessNoticesThatANumberIsUsedAgain) {
  Lru(2, &plan_);
  Use(PolicyOf(Policy::ASP));
  Push(1, 0, {1});
  Read(0, 0, {1});  // at version 1
  Push(1, 1, {2});
  Push(1, 2, {3});  // evicts 1, and takes its number
  Push(1, 3, {3});
  Push(1, 4, {3});
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(counts().to_fresh_rows, 0u);
  Push(0, 0, {1}, /*version_read=*/1);
  EXPECT_EQ(records_.back().rows_measured, 1u);
  EXPECT_EQ(records_.back().row_staleness_sum, 0u);
  EXPECT_EQ(counts().to_fresh_rows, 1u);
  EXPECT_TRUE(Has(1));
  EXPECT_TRUE(Has(3));
  // Row 1 now has one update; with those of its former life it would have two.
  Read(2, 0, {1});
  Push(1, 5, {1});
  Push(2, 0, {1}, /*version_read=*/6);
  EXPECT_EQ(records_.back().row_staleness_sum, 1u);
  EXPECT_EQ(table_.stats.by_popularity[2].count, 1u) << "two updates before";
}

TEST(PullTimesTest, AFreshRowHasNoUpdates) {
  server::PullTimes times(1, 1, /*by_row=*/true);
  times.CountUpdate(Rows{3, server::RowIndex::kNoRow});
  times.CountUpdate(Rows{3});
  EXPECT_EQ(times.Updates(3), 2u);
  EXPECT_EQ(times.UpdatesSince(3, 1), 1u);
  times.OnCreated(Rows{3, 9});
  EXPECT_EQ(times.Updates(3), 0u);
  EXPECT_EQ(times.UpdatesSince(3, 1), 0u) << "read in its former life";
  times.CountUpdate(Rows{3, 9});
  EXPECT_EQ(times.Updates(3), 1u);
  EXPECT_EQ(times.UpdatesSince(3, 1), 1u);
  EXPECT_EQ(times.UpdatesSince(3, 3), 0u) << "read after its update";
  EXPECT_EQ(times.Updates(9), 1u);
}

// A gradient is compensated from the row as it was read to the row as a pull reads it now: both
// have the initial value here.
TEST_F(LimitedRangeTest, ACompensationTakesAnAbsentRowAsItReads) {
  Lru(1, &plan_);
  Use(PolicyOf(Policy::DC_ASGD));
  Read(0, 0, {1});
  Push(1, 0, {2}, 0);
  Push(0, 0, {1}, 0);
  const std::vector<float> row = Row(1);
  EXPECT_EQ(Size(), 1);
  plan_.eviction.Clear();
  Use(PolicyOf(Policy::ASP));
  Push(0, 0, {1});
  EXPECT_EQ(row, Row(1));
}

}  // namespace
}  // namespace tandem
