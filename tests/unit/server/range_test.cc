// What a range does for any policy, shown with policies that exist only here: a buffer in order of
// arrival that the policy closes when it likes, and gradients that the policy changes on their way
// to the optimizer. All of it goes along when the range moves.
#include "server/range.h"

#include <malloc.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/memory_full.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "tests/sanitized.h"
#include "tests/unit/server/range_image.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kKey = 7;

// The mean of every `batch` updates, in order of arrival; an update of rank r counts 1 / (r + 1).
class BatchPolicy final : public policies::UpdatePolicy {
 public:
  explicit BatchPolicy(int64_t batch) : batch_(batch) {}
  std::string name() const override { return absl::StrCat("BATCH(", batch_, ")"); }
  policies::Properties properties() const override {
    policies::Properties properties;
    properties.holds = true;
    properties.batch = batch_;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const policies::RangeProgress&, int, int64_t, int) const override { return true; }
  policies::Arrival OnArrival(const policies::RangeProgress&,
                              const policies::Update&) const override {
    return policies::Arrival::kHold;
  }
  policies::Transform OnApply(const policies::RangeProgress&, const policies::Update& update,
                              const policies::Group&) const override {
    return {1.0f / static_cast<float>(update.rank + 1)};
  }
  int64_t Ticks(const policies::RangeProgress&, const policies::Buffered& buffered,
                const policies::Pushed&) const override {
    return buffered.oldest >= batch_ ? 1 : 0;
  }

 private:
  const int64_t batch_;
};

// Delay compensation (Zheng et al. 2017) with lambda 1/2.
class Compensating final : public policies::UpdatePolicy {
 public:
  std::string name() const override { return "COMPENSATING"; }
  policies::Properties properties() const override {
    policies::Properties properties;
    properties.rows_as_read = true;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const policies::RangeProgress&, int, int64_t, int) const override { return true; }
  policies::Arrival OnArrival(const policies::RangeProgress&,
                              const policies::Update&) const override {
    return policies::Arrival::kApply;
  }
  policies::Transform OnApply(const policies::RangeProgress&, const policies::Update&,
                              const policies::Group&) const override {
    return {1.0f, 0.5f};
  }
  int64_t Ticks(const policies::RangeProgress&, const policies::Buffered&,
                const policies::Pushed& pushed) const override {
    return pushed.steps;
  }
};

// As above, and drops all that comes.
class Dropping final : public policies::UpdatePolicy {
 public:
  std::string name() const override { return "DROPPING"; }
  policies::Properties properties() const override { return Compensating().properties(); }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const policies::RangeProgress&, int, int64_t, int) const override { return true; }
  policies::Arrival OnArrival(const policies::RangeProgress&,
                              const policies::Update&) const override {
    return policies::Arrival::kDrop;
  }
  policies::Transform OnApply(const policies::RangeProgress&, const policies::Update&,
                              const policies::Group&) const override {
    return {};
  }
  int64_t Ticks(const policies::RangeProgress&, const policies::Buffered&,
                const policies::Pushed& pushed) const override {
    return pushed.steps;
  }
};

class RangeTest : public ::testing::Test {
 protected:
  RangeTest() : policy_(3) {
    plan_.name = "w";
    plan_.dim = 1;
    plan_.expected_rows = 1;
    plan_.initializer.set_kind(Initializer::CONSTANT);
    plan_.initializer.set_scale(100);
    Optimizer sgd;
    sgd.set_kind(Optimizer::SGD);
    sgd.set_learning_rate(1);
    optimizer_ = *optim::NewRowOptimizer(sgd);
    table_.plan = &plan_;
    table_.optimizer = optimizer_.get();
    table_.policy = &policy_;
    table_.reads = 2;
    table_.workers = 4;
    table_.record = true;
    table_.records = &records_;
    range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
  }

  // `rows` false: an update that touches nothing in this range.
  void Give(int rank, int64_t step, float gradient, uint64_t samples, bool rows = true,
            int64_t version_read = -1,
            server::Range::Admission want = server::Range::Admission::kAdmitted) {
    server::HeldUpdate update;
    update.rank = rank;
    update.step = step;
    update.samples = samples;
    update.version_read = version_read < 0 ? range_->progress().version : version_read;
    if (rows) {
      update.keys = buffers_.Alloc(sizeof kKey);
      update.keys.MutableAs<uint64_t>()[0] = kKey;
      update.values = buffers_.Alloc(sizeof gradient);
      update.values.MutableAs<float>()[0] = gradient;
    }
    EXPECT_EQ(range_->Admit(now_, /*incarnation=*/1, step, std::move(update), false), want);
  }
  void Skip(int rank, int64_t step) {
    server::HeldUpdate update;
    update.rank = rank;
    update.step = step;
    update.skipped = true;
    EXPECT_EQ(range_->Admit(now_, /*incarnation=*/1, step, std::move(update), false),
              server::Range::Admission::kAdmitted);
  }
  // Worker `rank` reads the row for `step`, as a shard would have answered it.
  void Read(int rank, int64_t step) {
    const float row = Row();
    range_->RememberRead(now_, rank, step, {&kKey, 1}, {&row, 1});
  }
  void Use(const policies::UpdatePolicy& policy) {
    table_.policy = &policy;
    range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
  }
  float Row() {
    float row = 0;
    range_->store().Pull({&kKey, 1}, {&row, 1});
    return row;
  }
  std::vector<int> Workers() const {
    std::vector<int> workers;
    for (const server::UpdateRecord& record : records_) workers.push_back(record.worker);
    return workers;
  }

  absl::Time now_ = absl::UnixEpoch();
  BatchPolicy policy_;
  job::TablePlan plan_;
  std::unique_ptr<optim::RowOptimizer> optimizer_;
  server::TableContext table_;
  std::vector<server::UpdateRecord> records_;
  server::FoldScratch scratch_;
  HeapBufferSource buffers_;
  std::unique_ptr<server::Range> range_;
};

TEST_F(RangeTest, ABatchIsFoldedInOrderOfArrivalWhenThePolicyClosesIt) {
  Give(3, 0, 8, 1);  // counts a quarter
  Give(0, 0, 2, 2);
  EXPECT_EQ(Row(), 100);
  EXPECT_EQ(range_->progress().version, 0);
  EXPECT_EQ(range_->progress().workers[3].applied, 0);
  Give(1, 0, 6, 1);  // counts a half
  EXPECT_EQ(Row(), 100 - (8.0f / 4 + 2 + 6.0f / 2) / 4);
  EXPECT_EQ(range_->progress().version, 1);
  EXPECT_EQ(range_->progress().workers[3].applied, 1);
  EXPECT_EQ(range_->held_bytes(), 0u);
  EXPECT_THAT(Workers(), ElementsAre(3, 0, 1));
  // The same worker may be in a batch more than once, and one without rows here counts.
  Give(2, 0, 3, 1);
  Give(2, 1, 3, 1);
  EXPECT_EQ(range_->progress().version, 1);
  Give(0, 1, 0, 2, /*rows=*/false);
  EXPECT_EQ(Row(), 98.25f - (1.0f + 1.0f) / 4);
  EXPECT_EQ(range_->progress().version, 2);
}

// A worked example of RINGMASTER. An update without rows in the range comes from no read of it, so
// no delay drops it, and it counts in the version.
TEST_F(RangeTest, RingmasterDropsByTheDelayInAppliedUpdates) {
  Policy config;
  config.set_kind(Policy::RINGMASTER);
  config.set_max_delay(2);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  Use(*policy);
  const auto version = [this] { return range_->progress().version; };
  Give(0, 0, 1, 1, /*rows=*/true, /*version_read=*/0);
  Give(1, 0, 2, 1, true, 0);
  EXPECT_EQ(version(), 2);
  Give(2, 0, 4, 1, true, 0);  // two have been applied since
  EXPECT_EQ(version(), 2);
  Give(2, 1, 8, 1, true, 2);
  EXPECT_EQ(version(), 3);
  Give(3, 0, 0, 1, /*rows=*/false, 0);
  EXPECT_EQ(version(), 4);
  Give(0, 1, 16, 2, true, 3);
  Give(1, 1, 32, 1, true, 3);
  EXPECT_EQ(version(), 5);
  EXPECT_EQ(Row(), 100 - 1 - 2 - 8 - 16.0f / 2);
  std::vector<int> fates;
  for (const server::UpdateRecord& record : records_) fates.push_back(record.fate);
  EXPECT_THAT(fates, ElementsAre(server::kFateApplied, server::kFateApplied, server::kFateDropped,
                                 server::kFateApplied, server::kFateApplied, server::kFateDropped));
}

// Three updates of worker 0 and one of worker 1, each with its samples: the mean over the workers
// of each worker's mean, whenever the gradients of worker 0 were added up, and wherever the range
// was.
TEST_F(RangeTest, RingleaderTakesTheMeanOverWorkersOfEachWorkersMean) {
  Policy config;
  config.set_kind(Policy::RINGLEADER);
  const auto policy = *policies::NewUpdatePolicy(config, 2);
  table_.workers = 2;
  constexpr size_t kPushBytes = sizeof kKey + sizeof(float);
  for (const bool moves : {false, true}) {
    table_.stats = {};
    records_.clear();
    Use(*policy);
    Read(0, 0);
    Give(0, 0, 3, 2);
    EXPECT_EQ(range_->held_bytes(), kPushBytes);
    Read(0, 1);
    Give(0, 1, 5, 1);
    Give(0, 2, -1, 3);
    EXPECT_EQ(range_->held_bytes(), kPushBytes) << "one sum";
    Give(0, 3, 0, 2, /*rows=*/false);
    EXPECT_EQ(Row(), 100);
    if (moves) {
      const server::RangeImage image = ImageOf(*range_);
      Use(*policy);
      ASSERT_EQ(range_->Restore(image, buffers_), absl::OkStatus());
      EXPECT_EQ(range_->held_bytes(), kPushBytes);
      EXPECT_EQ(ImageOf(*range_).held, image.held);
    }
    Give(1, 0, 8, 4);
    const double step = ((3.0 + 5.0 - 1.0) / (2 + 1 + 3 + 2) + 8.0 / 4) / 2;
    EXPECT_NEAR(Row(), 100 - step, 1e-5);
    EXPECT_EQ(range_->progress().version, 1);
    EXPECT_EQ(range_->held_bytes(), 0u);
    // Each update counts once.
    EXPECT_THAT(Workers(), ElementsAre(0, 0, 0, 1));
    for (const server::UpdateRecord& record : records_) {
      EXPECT_EQ(record.fate, server::kFateMerged);
      EXPECT_EQ(record.rows, 1u);
      EXPECT_EQ(record.divided_by, record.worker == 0 ? 2 * 8u : 2 * 4u);
      EXPECT_EQ(record.version_applied, 0);
    }
    const server::UpdateStats& stats = table_.stats.total;
    EXPECT_EQ(stats.merged, 4u);
    EXPECT_EQ(stats.samples.sent, 10u);
    EXPECT_EQ(stats.samples.applied, 10.0);
    EXPECT_EQ(stats.row_staleness.count, 2u) << "of the updates whose read is known";
  }
}

// Two rows, and gradients whose sum depends on the order: the bits are those of the rank order, and
// of the order of arrival within a worker.
TEST_F(RangeTest, RingleaderAddsInTheOrderOfWorkersAndThenOfArrival) {
  Policy config;
  config.set_kind(Policy::RINGLEADER);
  const auto policy = *policies::NewUpdatePolicy(config, 3);
  table_.workers = 3;
  const float gradients[3][3] = {{1e8f, 1, -1e8f}, {0.1f, 0.2f, 0.3f}, {3, -3, 7}};
  float first = 0;
  for (const std::vector<int>& ranks :
       {std::vector<int>{0, 0, 0, 1, 1, 1, 2}, std::vector<int>{1, 0, 1, 0, 0, 1, 2},
        std::vector<int>{1, 1, 0, 0, 1, 0, 2}}) {
    Use(*policy);
    int64_t steps[3] = {};
    for (const int rank : ranks) {
      Give(rank, steps[rank], gradients[rank][steps[rank]], 1);
      ++steps[rank];
    }
    const float sums[] = {(1e8f + 1) + -1e8f, (0.1f + 0.2f) + 0.3f, 3};
    const float mean = (sums[0] * (1.0f / 9) + sums[1] * (1.0f / 9)) + sums[2] * (1.0f / 3);
    EXPECT_EQ(Row(), 100 - mean);
    if (first == 0) first = Row();
    EXPECT_EQ(Row(), first);
  }
}

// Updates with delays 0, 1, 2 and 4 under DELAY_ADAPTIVE(2): the rate of the last one is half, for
// SGD and for Adam, whose steps do not depend on the size of gradients.
TEST_F(RangeTest, DelayAdaptiveRatesReachEveryOptimizer) {
  Policy config;
  config.set_kind(Policy::DELAY_ADAPTIVE);
  config.set_full_rate_delay(2);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  const double gradients[] = {3, -1, 2, 5};
  const int64_t delays[] = {0, 1, 2, 4};
  const double rates[] = {1, 1, 1, 0.5};
  const auto train = [&] {
    Use(*policy);
    Give(0, 0, 0, 1, /*rows=*/false);
    for (int i = 0; i < 4; ++i) {
      Give(1, i, static_cast<float>(4 * gradients[i]), 4, true,
           1 + i - std::min<int64_t>(1 + i, delays[i]));
    }
    return Row();
  };
  double sgd = 100;
  for (int i = 0; i < 4; ++i) sgd -= rates[i] * gradients[i];
  EXPECT_EQ(train(), sgd);
  Optimizer adam;
  adam.set_kind(Optimizer::ADAM);
  adam.set_learning_rate(0.5);
  adam.set_step_count(Optimizer::TABLE);
  adam.set_beta1(0.9);
  adam.set_beta2(0.999);
  adam.set_epsilon(1e-8);
  optimizer_ = *optim::NewRowOptimizer(adam);
  table_.optimizer = optimizer_.get();
  double weight = 100, m = 0, v = 0;
  for (int i = 0; i < 4; ++i) {
    m = 0.9 * m + 0.1 * gradients[i];
    v = 0.999 * v + 0.001 * gradients[i] * gradients[i];
    const int t = i + 2;  // the update without rows was a step of the table
    weight -= 0.5 * rates[i] * (m / (1 - std::pow(0.9, t))) /
              (std::sqrt(v / (1 - std::pow(0.999, t))) + 1e-8);
  }
  EXPECT_NEAR(train(), weight, 2e-5);
}

// Rows that have moved in advance by 0 ... 999 go back at the end, once.
TEST_F(RangeTest, TheEndSettlesEveryRow) {
  Optimizer config;
  config.set_kind(Optimizer::SGD);
  config.set_learning_rate(1);
  config.set_error_feedback(1);
  optimizer_ = *optim::NewRowOptimizer(config);
  table_.optimizer = optimizer_.get();
  Use(policy_);
  std::vector<uint64_t> keys;
  std::vector<float> slots, want;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back(static_cast<uint64_t>(i));
    slots.insert(slots.end(), {static_cast<float>(i), 0});
    want.push_back(static_cast<float>(5 + i));
  }
  ASSERT_TRUE(range_->store().Assign(keys, std::vector<float>(keys.size(), 5), slots).ok());
  for (int times = 0; times < 2; ++times) {
    range_->FinishDelayed();
    std::vector<float> weights(keys.size());
    range_->store().Pull(keys, absl::MakeSpan(weights));
    EXPECT_EQ(weights, want);
  }
}

// A row that cannot be created is an error for users in one line. The shard ends with it.
TEST_F(RangeTest, ARowWithoutMemoryIsAnErrorWithTableRowsAndAHint) {
  Give(3, 0, 8, 1);
  Give(0, 0, 2, 2);
  Give(1, 0, 6, 1);
  EXPECT_EQ(table_.failure, absl::OkStatus());
  const server::RangeImage image = ImageOf(*range_);
  EXPECT_EQ(image.keys.size(), 1u);
  server::MemoryBudget budget(/*limit=*/1000);
  server::PageArena arena(&budget);
  table_.arena = &arena;
  for (const bool loads : {false, true}) {
    table_.failure = absl::OkStatus();
    range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
    absl::Status failure;
    if (loads) {
      failure = range_->LoadCheckpoint(image, buffers_);
    } else {
      Give(3, 0, 8, 1);
      Give(0, 0, 2, 2);
      EXPECT_EQ(table_.failure, absl::OkStatus());
      Give(1, 0, 6, 1);
      failure = table_.failure;
    }
    EXPECT_TRUE(absl::IsResourceExhausted(failure)) << failure;
    const std::string why(failure.message());
    EXPECT_THAT(why,
                HasSubstr("table w: no memory for another row of range 0, whose 0 rows take "));
    EXPECT_THAT(why, HasSubstr("the server uses 0 of 1000 bytes; hint: a larger "
                               "cluster.memory_per_server, "));
    EXPECT_TRUE(IsMemoryFull(failure));
    EXPECT_THAT(why, Not(HasSubstr("\n")));
    EXPECT_EQ(Row(), 100) << "as if it had not been updated";
  }
  range_ = nullptr;  // before its arena
}

TEST_F(RangeTest, AnOpenBatchMovesWithItsRange) {
  Give(3, 0, 8, 1);
  Give(0, 0, 2, 2);
  const size_t held = range_->held_bytes();
  const server::RangeImage image = ImageOf(*range_);
  range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  EXPECT_EQ(range_->held_bytes(), held);
  Give(1, 0, 6, 1);
  EXPECT_EQ(Row(), 98.25f);
  EXPECT_THAT(Workers(), ElementsAre(3, 0, 1));
}

// The gradients add up to 3 in rank order, and to another sum in any other order.
TEST_F(RangeTest, AStepIsFoldedAndMovedInRankOrderWhateverTheOrderOfArrival) {
  Policy config;
  config.set_kind(Policy::BSP);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  const float gradients[] = {1e8f, 1, -1e8f, 3};
  std::string first;
  for (const std::vector<int>& ranks :
       {std::vector<int>{0, 1, 3}, std::vector<int>{3, 1, 0}, std::vector<int>{1, 3, 0}}) {
    Use(*policy);
    for (const int rank : ranks) Give(rank, 0, gradients[rank], 1);
    const std::string bytes = range_->Encode();
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first);
    Give(2, 0, gradients[2], 1);
    EXPECT_EQ(Row(), 100 - 3.0f / 4);
  }
}

// A skipped step adds nothing to the mean. If all skip it, the version moves, and readers do not
// take it for the end of the data, also after a move.
TEST_F(RangeTest, AStepMayBeSkipped) {
  Policy config;
  config.set_kind(Policy::BSP);
  const auto policy = *policies::NewUpdatePolicy(config, 2);
  table_.workers = 2;
  Use(*policy);
  Give(0, 0, 8, 4);
  Skip(1, 0);
  EXPECT_EQ(Row(), 100 - 8.0f / 4);
  Skip(1, 1);
  const server::RangeImage image = ImageOf(*range_);
  Use(*policy);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  Skip(0, 1);
  EXPECT_EQ(range_->progress().version, 2);
  EXPECT_EQ(Row(), 98);
  EXPECT_EQ(range_->ordered().order.last_closed_samples(), 1u);
  for (const int rank : {0, 1}) Give(rank, 2, 0, 0, /*rows=*/false);
  EXPECT_EQ(range_->progress().version, 3);
  EXPECT_EQ(range_->ordered().order.last_closed_samples(), 0u);
}

TEST_F(RangeTest, ASkippedStepHasItsPlaceInABatch) {
  Give(0, 0, 2, 2);
  Skip(1, 0);
  EXPECT_EQ(range_->progress().version, 0);
  Give(2, 0, 6, 1);  // counts a third
  EXPECT_EQ(range_->progress().version, 1);
  EXPECT_EQ(Row(), 100 - (2 + 6.0f / 3) / 3);
}

// One update of an open group, in the layouts of all versions.
TEST(HeldStepTest, ReadsTheLayoutsOfEarlierVersions) {
  for (const uint64_t layout : {2, 3, 4, 5}) {
    const bool in_batches = layout == 3 || layout >= 5, has_clock = layout >= 4;
    std::vector<uint64_t> numbers = {layout << 32 | 0x646c6568, 1,
                                     /*step=*/9,
                                     /*samples=*/8};
    if (has_clock) numbers.push_back(/*sample_clock=*/64);
    numbers.insert(numbers.end(), {/*contributions=*/1, /*updates=*/1});
    numbers.insert(numbers.end(), {/*rank=*/2, /*step=*/7, /*samples=*/8, /*version_read=*/5,
                                   /*admitted_at=*/1, /*clock_gap=*/1, /*in_flight=*/1});
    if (has_clock) numbers.push_back(/*positives=*/3);
    if (in_batches) numbers.push_back(/*read_number=*/11);
    if (layout == 5) numbers.push_back(/*rows_before_sum=*/4);
    numbers.insert(numbers.end(), {/*keys=*/1, kKey});
    std::string bytes(reinterpret_cast<const char*>(numbers.data()), 8 * numbers.size());
    const float gradient = 0.5f;
    const uint64_t no_delayed = 0;
    bytes.append(reinterpret_cast<const char*>(&gradient), sizeof gradient);
    bytes.append(reinterpret_cast<const char*>(&no_delayed), sizeof no_delayed);
    HeapBufferSource source;
    server::HeldQueue open, delayed;
    bool batches = false;
    ASSERT_EQ(server::DecodeHeld(bytes, /*dim=*/1, source, &open, &delayed, &batches),
              absl::OkStatus());
    EXPECT_EQ(batches, in_batches);
    ASSERT_EQ(open.size(), 1u);
    EXPECT_EQ(open[0].sample_clock, has_clock ? 64 : 0);
    ASSERT_EQ(open[0].updates.size(), 1u);
    const server::HeldUpdate& update = open[0].updates[0];
    EXPECT_EQ(update.rank, 2);
    EXPECT_EQ(update.read_number, in_batches ? 11 : -1);
    EXPECT_EQ(update.positives, has_clock ? 3 : policies::kUnknownPositives);
    EXPECT_EQ(update.rows_before_sum, layout == 5 ? 4 : -1);
    EXPECT_EQ(update.rows(), layout == 5 ? 4u : 1u);
    EXPECT_EQ(update.keys.As<uint64_t>()[0], kKey);
    EXPECT_EQ(update.values.As<float>()[0], gradient);
    if (has_clock) {
      EXPECT_EQ(server::EncodeHeld(open, delayed, in_batches), bytes);
    }
  }
}

// As after a load from several files, each with a part of an update.
TEST(HeldStepTest, UpdatesOfARankStayInTheirOrder) {
  server::HeldStep step;
  for (int i = 0; i < 40; ++i) {
    server::HeldUpdate& update = step.updates.emplace_back();
    update.rank = i * 7 % 3;
    update.step = i;
  }
  step.SortByRank();
  for (size_t i = 1; i < step.updates.size(); ++i) {
    const server::HeldUpdate &before = step.updates[i - 1], &update = step.updates[i];
    EXPECT_LT(std::make_pair(before.rank, before.step), std::make_pair(update.rank, update.step));
  }
}

// The answers about all workers belong to a range, and its copies have none.
TEST_F(RangeTest, ACopyLooksAtEachWorker) {
  for (int rank = 0; rank < 3; ++rank) Give(rank, 0, 8, 1);
  const policies::RangeProgress& progress = range_->progress();
  EXPECT_NE(progress.clocks, nullptr);
  const server::RangeCopy copy =
      range_->Copy(/*for_move=*/false, std::make_shared<server::CopyBlocks>());
  EXPECT_EQ(copy.head.progress.clocks, nullptr);
  EXPECT_EQ(copy.head.progress.Admitted(), 3);
  const server::RangeImage image = ImageOf(*range_);
  range_ = std::make_unique<server::Range>(0, 0, 0, &table_, &scratch_);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  EXPECT_NE(range_->progress().clocks, nullptr);
  EXPECT_EQ(range_->progress().Admitted(), 3);
  EXPECT_EQ(range_->progress().MinAdmitted(), 0);
}

TEST_F(RangeTest, AnUpdateMayKnowItsRowsAsTheyWereRead) {
  const Compensating policy;
  Use(policy);
  Read(0, 0);
  Read(1, 0);
  const size_t of_two = range_->held_bytes();
  EXPECT_EQ(of_two, 2 * (sizeof kKey + sizeof(float)));
  Give(0, 0, 8, 2);  // mean 4; nothing has changed since
  EXPECT_EQ(Row(), 96);
  EXPECT_EQ(range_->held_bytes(), of_two / 2) << "its read is forgotten";
  // The range moves with what worker 1 has read: the row has come down by 4 since.
  const server::RangeImage image = ImageOf(*range_);
  Use(policy);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  EXPECT_EQ(range_->held_bytes(), of_two / 2);
  Give(1, 0, 6, 2, true, /*version_read=*/0);  // 3 + 1/2 * 3 * 3 * (96 - 100) = -15
  EXPECT_EQ(Row(), 111);
  EXPECT_EQ(range_->held_bytes(), 0u);
}

// What was not read, read at another version, or read too long ago counts as unchanged.
TEST_F(RangeTest, ARowThatIsNotRememberedIsNotCompensated) {
  const Compensating policy;
  Use(policy);
  for (int64_t step = 0; step < 50; ++step) Read(1, step);
  EXPECT_EQ(range_->held_bytes(), 2 * (sizeof kKey + sizeof(float))) << "the last two";
  Give(0, 0, 4, 1);
  Give(1, 0, 1, 1, true, /*version_read=*/0);
  Give(0, 1, 4, 1);
  Give(2, 0, 1, 1, true, /*version_read=*/0);
  EXPECT_EQ(Row(), 90);
  EXPECT_EQ(range_->held_bytes(), 2 * (sizeof kKey + sizeof(float)));
}

// Of four workers; an update that is later than its batch counts nothing.
std::unique_ptr<policies::UpdatePolicy> Gba(int batches) {
  Policy config;
  config.set_kind(Policy::GBA);
  config.set_batches(batches);
  config.set_token_gap(0);
  return *policies::NewUpdatePolicy(config, 4);
}

// Numbers of reads, in their order; a read that is answered again keeps its own, and one of a step
// that was pushed before takes none.
TEST_F(RangeTest, ReadsAreCountedInTheirOrder) {
  const auto gba = Gba(2);
  Use(*gba);
  for (const int rank : {0, 1, 1, 2, 3, 2}) Read(rank, 0);  // 0, 1 have token 0; 2, 3 token 1
  Give(3, 0, 8, 1, true, 0);
  Give(2, 0, 8, 1, true, 0);
  EXPECT_EQ(Row(), 92) << "both before their turn";
  Read(3, 1);  // token 2
  Read(3, 0);  // comes once more
  Give(1, 0, 8, 1, true, 0);
  // The range moves with an open batch and with what was read.
  const server::RangeImage image = ImageOf(*range_);
  Use(*gba);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  Give(3, 1, 4, 1, true, 1);
  EXPECT_EQ(Row(), 90) << "4 / 2; worker 1 was too late, and counts in n";
  EXPECT_EQ(range_->progress().version, 2);
  EXPECT_EQ(records_[2].fate, server::kFateDropped);
  EXPECT_EQ(records_[3].fate, server::kFateMerged);
  EXPECT_EQ(table_.stats.total.dropped, 1u);
  EXPECT_EQ(table_.stats.total.merged, 3u);
  // Worker 0 has token 0 still. What had nothing to read here takes the next number, 5: token 2.
  Give(0, 0, 4, 1, true, 0);
  Give(1, 1, 0, 1, /*rows=*/false);
  EXPECT_EQ(Row(), 90);
  EXPECT_EQ(range_->held_bytes(), 0u);
}

// The other workers fill batches while worker 0 is replaced. The gradient of its new process is not
// late, because the new process has read the row again.
TEST_F(RangeTest, ANewProcessReadsInTurn) {
  const auto gba = Gba(2);
  Use(*gba);
  for (const int rank : {0, 1, 2, 3}) Read(rank, 0);
  Read(1, 1);
  for (const int rank : {1, 2, 3}) Give(rank, 0, 8, 1);
  Give(1, 1, 8, 1);
  EXPECT_EQ(Row(), 84);
  EXPECT_EQ(range_->progress().version, 2);
  range_->ForgetWorker(0);
  Read(0, 0);  // the sixth read: token 2
  Give(0, 0, 8, 1);
  Give(2, 1, 0, 1, /*rows=*/false);
  EXPECT_EQ(Row(), 80);
  EXPECT_EQ(table_.stats.total.dropped, 0u);
}

TEST_F(RangeTest, RowsThatADeadProcessHasReadAreForgotten) {
  const Compensating policy;
  Use(policy);
  for (const int rank : {0, 1}) {
    Read(rank, 5);
    Read(rank, 6);
  }
  const size_t of_two_workers = range_->held_bytes();
  range_->ForgetWorker(0);
  EXPECT_EQ(range_->held_bytes(), of_two_workers / 2);
}

// At the end of an epoch a batch is closed short of its size, and a read may never be pushed:
// tokens and batches count together again.
TEST_F(RangeTest, TokensStartAnewWhenNobodyHasData) {
  const auto gba = Gba(3);
  table_.lockstep = true;  // a push of nothing says that a worker has no data
  Use(*gba);
  for (int rank = 0; rank < 4; ++rank) Read(rank, 0);
  Give(0, 0, 3, 1);
  for (int rank = 1; rank < 4; ++rank) Give(rank, 0, 0, 0, /*rows=*/false);
  EXPECT_EQ(range_->progress().version, 0) << "worker 0 may have more";
  Give(0, 1, 0, 0, /*rows=*/false);
  EXPECT_EQ(range_->progress().version, 1);
  EXPECT_EQ(Row(), 97);
  EXPECT_EQ(range_->progress().workers[0].applied, 2);
  for (const int rank : {0, 1, 2, 3}) Read(rank, 2);  // 3, 4, 5: token 1; 6: token 2
  Give(0, 2, 3, 1);
  for (const int rank : {1, 2}) {
    Give(rank, 1, 0, 0, /*rows=*/false);
    Give(rank, 2, 3, 1);
  }
  EXPECT_EQ(Row(), 94) << "none of them is late";
}

// With a decay, lambda is divided by the root of a mean square, of each element by itself, that
// moves and is saved with the range.
TEST_F(RangeTest, ACompensationMayAdaptToTheGradients) {
  Policy config;
  config.set_kind(Policy::DC_ASGD);
  config.set_compensation(2);
  config.set_mean_square_decay(0.75);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  Use(*policy);
  Read(0, 0);
  Read(1, 0);
  Read(2, 0);
  Give(0, 0, 8, 2, true, 0);  // mean 4: mean square 1/4 * 16 = 4
  EXPECT_EQ(Row(), 96);
  const server::RangeImage image = ImageOf(*range_);
  Use(*policy);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  Give(1, 0, 4, 2, true, 0);  // mean 2: 3/4 * 4 + 1/4 * 4 = 4; 2 + 2 / 2 * 2 * 2 * (96 - 100) = -14
  EXPECT_NEAR(Row(), 110, 1e-4);
  server::RangeImage cut = image;
  for (size_t bytes = 1; bytes <= image.held.size(); ++bytes) {
    cut.held = image.held.substr(0, image.held.size() - bytes);
    server::Range other(0, 0, 0, &table_, &scratch_);
    EXPECT_FALSE(other.Restore(cut, buffers_).ok()) << bytes;
  }
}

// Who has seen the switch elsewhere pushes here before it has come: that waits, and is no part of a
// step that is taken together. On which side a range stands moves with it.
TEST_F(RangeTest, UpdatesBehindASwitchWaitForIt) {
  Policy config;
  config.set_kind(Policy::SYNC_SWITCH);
  config.set_switch_step(1);
  const auto policy = *policies::NewUpdatePolicy(config, 4);
  Use(*policy);
  for (int rank = 0; rank < 3; ++rank) Give(rank, 0, 4, 1);
  Give(0, 1, 2, 1, true, 0, server::Range::Admission::kEarly);
  EXPECT_EQ(range_->progress().version, 0);
  const server::RangeImage before = ImageOf(*range_);
  Use(*policy);
  ASSERT_TRUE(range_->Restore(before, buffers_).ok());
  Give(0, 1, 2, 1, true, 0, server::Range::Admission::kEarly);
  EXPECT_EQ(Row(), 100);
  Give(3, 0, 8, 1);
  EXPECT_EQ(Row(), 100 - (3 * 4 + 8) / 4);
  EXPECT_EQ(range_->progress().version, 1);
  const server::RangeImage behind = ImageOf(*range_);
  Use(*policy);
  ASSERT_TRUE(range_->Restore(behind, buffers_).ok());
  Give(0, 1, 2, 1);
  Give(0, 2, 3, 1);
  EXPECT_EQ(Row(), 95 - 2 - 3);
  EXPECT_EQ(range_->progress().version, 3);
  EXPECT_EQ(range_->progress().workers[0].applied, 3);
  EXPECT_EQ(range_->progress().workers[1].applied, 1);
}

// The pace goes along, but not the moment of the last push: that is of another clock.
TEST_F(RangeTest, ThePaceOfWorkersMovesWithTheRange) {
  Policy config;
  config.set_kind(Policy::DSSP);
  config.set_bound(1);
  config.set_upper_bound(3);
  const auto dssp = *policies::NewUpdatePolicy(config, 4);
  Use(*dssp);
  for (int64_t step = 0; step < 3; ++step) {
    now_ = absl::FromUnixMicros(100 + 70 * step);
    Give(2, step, 1, 1);
  }
  EXPECT_EQ(range_->progress().paces[2].step_time, 70);
  EXPECT_EQ(range_->progress().paces[2].last_push, 240);
  EXPECT_FALSE(range_->progress().paces[0].known());
  const server::RangeImage image = ImageOf(*range_);
  Use(*dssp);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  EXPECT_EQ(range_->progress().paces[2].step_time, 70);
  EXPECT_FALSE(range_->progress().paces[2].known());
  now_ = absl::FromUnixMicros(5);
  Give(2, 3, 1, 1);
  EXPECT_TRUE(range_->progress().paces[2].known());
  EXPECT_EQ(range_->progress().paces[2].step_time, 70);
  Give(2, 4, 0, 0, /*rows=*/false);  // the end of an epoch
  EXPECT_FALSE(range_->progress().paces[2].known());
}

// Bytes of another layout are refused, and so is every cut of the right ones.
TEST_F(RangeTest, HeldUpdatesThatAreNotWholeAreRefused) {
  Give(3, 0, 8, 1);
  server::RangeImage image = ImageOf(*range_);
  const std::string whole = image.held;
  for (size_t size = 0; size < whole.size(); ++size) {
    image.held = whole.substr(0, size);
    server::Range other(0, 0, 0, &table_, &scratch_);
    EXPECT_FALSE(other.Restore(image, buffers_).ok()) << size;
  }
  image.held = whole;
  image.held[2 * sizeof(uint64_t) + 4] = 1;
  EXPECT_FALSE(range_->Restore(image, buffers_).ok());
}

// Versions are ticks of whole batches, so they fall behind the steps of a worker for ever.
TEST_F(RangeTest, ABatchLargerThanTheWorkersGoesOnForEver) {
  for (int64_t step = 0; step < 7000; ++step) Give(0, step, 0, 1);
  EXPECT_EQ(range_->progress().version, 7000 / 3);
}

TEST_F(RangeTest, ADroppedUpdateForgetsItsRead) {
  const Dropping policy;
  Use(policy);
  Read(0, 0);
  EXPECT_GT(range_->held_bytes(), 0u);
  Give(0, 0, 1, 1);
  EXPECT_EQ(range_->held_bytes(), 0u);
  EXPECT_EQ(range_->store().size(), 0) << "neither creates the row";
}

// Reads and pushes of any keys.
class RowStalenessTest : public RangeTest {
 protected:
  void ReadKeys(int rank, int64_t step, const std::vector<uint64_t>& keys) {
    std::vector<float> rows(keys.size());
    range_->store().Pull(keys, absl::MakeSpan(rows));
    range_->RememberRead(now_, rank, step, keys, rows);
  }
  // Of what was read at `version_read`; -1: now.
  void GiveKeys(int rank, int64_t step, const std::vector<uint64_t>& keys,
                int64_t version_read = -1) {
    server::HeldUpdate update;
    update.rank = rank;
    update.step = step;
    update.samples = 1;
    update.version_read = version_read < 0 ? range_->progress().version : version_read;
    update.keys = buffers_.Alloc(keys.size() * sizeof(uint64_t));
    std::copy(keys.begin(), keys.end(), update.keys.MutableAs<uint64_t>().begin());
    update.values = buffers_.Alloc(keys.size() * sizeof(float));
    for (float& value : update.values.MutableAs<float>()) value = 1;
    EXPECT_EQ(range_->Admit(now_, /*incarnation=*/1, step, std::move(update), false),
              server::Range::Admission::kAdmitted);
  }
  static std::unique_ptr<policies::UpdatePolicy> Asp() {
    Policy config;
    config.set_kind(Policy::ASP);
    return *policies::NewUpdatePolicy(config, 4);
  }
  const server::UpdateRecord& Last() const { return records_.back(); }
};

// Five versions come between read and update, of which two touched one of its rows and one the
// other.
TEST_F(RowStalenessTest, CountsOnlyUpdatesThatTouchedTheRow) {
  const auto asp = Asp();
  Use(*asp);
  now_ = absl::FromUnixMicros(1000);
  ReadKeys(0, 0, {1, 2, 3});
  for (const std::vector<uint64_t>& keys :
       std::vector<std::vector<uint64_t>>{{1}, {9}, {1, 3}, {8, 9}, {7}}) {
    const int64_t step = range_->progress().workers[1].admitted;
    ReadKeys(1, step, keys);
    GiveKeys(1, step, keys);
    EXPECT_EQ(Last().row_staleness_sum, 0u);
    EXPECT_EQ(Last().rows_measured, keys.size());
  }
  now_ = absl::FromUnixMicros(3500);
  GiveKeys(0, 0, {1, 3}, 0);  // not all that was read
  EXPECT_EQ(Last().version_applied - Last().version_read, 5);
  EXPECT_EQ(Last().row_staleness_sum, 3u);
  EXPECT_EQ(Last().row_staleness_max, 2u);
  EXPECT_EQ(Last().rows_measured, 2u);
  EXPECT_EQ(Last().age, 2500);
  // Row 1 had had two updates, row 3 one; the reads of worker 1 met rows without, and with one.
  const auto& by_popularity = table_.stats.by_popularity;
  EXPECT_EQ(by_popularity[1].count, 3u);  // 1 and 9 once more, 3 of worker 0
  EXPECT_EQ(by_popularity[1].sum, 1);
  EXPECT_EQ(by_popularity[2].count, 1u);
  EXPECT_EQ(by_popularity[2].sum, 2);
  EXPECT_EQ(table_.stats.workers[0].row_staleness.histogram.Count(2), 1u);
  EXPECT_EQ(table_.stats.workers[0].age.max, 2500);
  EXPECT_EQ(table_.stats.workers[1].row_staleness.count, 7u);
}

// A fold is one step of the optimizer, whoever is in it, and each of its updates has its own read.
TEST_F(RowStalenessTest, AFoldCountsOnce) {
  ReadKeys(3, 0, {1, 2});
  for (const int rank : {0, 1, 2}) {
    ReadKeys(rank, 0, {1, 2});
    GiveKeys(rank, 0, {1, 2});
    ReadKeys(rank, 1, {1, 2});  // of the first two, before their batch has closed
  }
  ASSERT_EQ(records_.size(), 3u);
  for (const server::UpdateRecord& record : records_) EXPECT_EQ(record.row_staleness_sum, 0u);
  for (const int rank : {0, 2}) GiveKeys(rank, 1, {1}, rank == 2 ? 1 : 0);
  GiveKeys(3, 0, {2}, 0);
  ASSERT_EQ(records_.size(), 6u);
  EXPECT_EQ(records_[3].row_staleness_sum, 1u);  // rank 0: read before the fold
  EXPECT_EQ(records_[4].row_staleness_sum, 0u);  // rank 2: after it
  EXPECT_EQ(records_[5].row_staleness_sum, 1u);  // rank 3
  EXPECT_EQ(records_[5].rows_measured, 1u);
}

// A read that is answered twice, one that this range never answered, and more than it remembers.
TEST_F(RowStalenessTest, WhatIsNotKnownIsNotMeasured) {
  const auto asp = Asp();
  Use(*asp);
  ReadKeys(0, 0, {1});
  GiveKeys(1, 0, {1});
  EXPECT_EQ(Last().rows_measured, 0u) << "it has not read";
  EXPECT_EQ(Last().age, -1);
  ReadKeys(0, 0, {1});  // asked again: the second answer is at version 1
  GiveKeys(0, 0, {1}, 0);
  EXPECT_EQ(Last().row_staleness_sum, 1u) << "of the answer that it says it has used";
  for (int64_t step = 1; step <= 3; ++step) ReadKeys(0, step, {1});
  GiveKeys(0, 1, {1});
  EXPECT_EQ(Last().rows_measured, 0u) << "only the last two are kept";
  GiveKeys(0, 2, {1}, 2);
  EXPECT_EQ(Last().row_staleness_sum, 1u);
  const server::RangeImage image = ImageOf(*range_);
  Use(*asp);
  ASSERT_TRUE(range_->Restore(image, buffers_).ok());
  GiveKeys(0, 3, {1}, 2);
  EXPECT_EQ(Last().rows_measured, 0u) << "of the owner before";
}

// The new process of a worker reads again, at the version at which the dead one has read.
TEST_F(RowStalenessTest, TheReadOfADeadProcessIsForgotten) {
  const auto asp = Asp();
  Use(*asp);
  now_ = absl::FromUnixMicros(1000);
  ReadKeys(0, 0, {1});
  range_->ForgetWorker(0);
  now_ = absl::FromUnixMicros(9000);
  ReadKeys(0, 0, {1});
  now_ = absl::FromUnixMicros(9500);
  GiveKeys(0, 0, {1}, 0);
  EXPECT_EQ(Last().age, 500);
}

// Reads of rows that another worker's update creates later.
TEST_F(RowStalenessTest, ARowMayBeCreatedAfterItWasRead) {
  const auto asp = Asp();
  Use(*asp);
  for (const int rank : {0, 1, 2}) ReadKeys(rank, 0, {1, 2, 3});
  EXPECT_EQ(range_->store().size(), 0);
  GiveKeys(1, 0, {1, 3}, 0);
  EXPECT_EQ(Last().row_staleness_sum, 0u);
  EXPECT_EQ(range_->store().size(), 2);
  GiveKeys(2, 0, {3}, 0);
  EXPECT_EQ(Last().row_staleness_sum, 1u);
  GiveKeys(0, 0, {2, 3}, 0);
  EXPECT_EQ(Last().row_staleness_sum, 2u);
  EXPECT_EQ(Last().row_staleness_max, 2u);
  EXPECT_EQ(Last().rows_measured, 2u);
  EXPECT_EQ(range_->store().size(), 3);
}

// Recorded or not, the same rows get the same bits.
TEST_F(RowStalenessTest, RecordingChangesNoRow) {
  std::vector<std::vector<uint64_t>> keys;
  std::vector<std::vector<float>> weights;
  for (const bool record : {true, false}) {
    table_.record = record;
    for (const auto& policy : {Asp(), *policies::NewUpdatePolicy(
                                          [] {
                                            Policy config;
                                            config.set_kind(Policy::K_BATCH_ASYNC);
                                            config.set_batches(2);
                                            return config;
                                          }(),
                                          4)}) {
      Use(*policy);
      for (int64_t step = 0; step < 20; ++step) {
        for (int rank = 0; rank < 4; ++rank) {
          const uint64_t key = static_cast<uint64_t>(step) % 5;
          ReadKeys(rank, step, {key, 9, 11 + static_cast<uint64_t>(rank)});
          GiveKeys(rank, step, {key, 9});
        }
      }
      const server::RangeImage image = ImageOf(*range_);
      keys.push_back(image.keys);
      weights.push_back(image.weights);
    }
  }
  for (const size_t policy : {size_t{0}, size_t{1}}) {
    EXPECT_THAT(keys[policy], UnorderedElementsAre(0u, 1u, 2u, 3u, 4u, 9u)) << "those with updates";
    EXPECT_EQ(keys[policy], keys[policy + 2]);
    EXPECT_EQ(weights[policy], weights[policy + 2]);
  }
}

// In jobs with many pairs of a worker and a table, workers are counted over all tables. Updates of
// frozen tables count for their table alone.
TEST_F(RangeTest, WorkersAreCountedOverTables) {
  std::vector<server::UpdateStats> workers(4);
  table_.over_tables = &workers;
  table_.stats = {};
  const auto asp = [] {
    Policy config;
    config.set_kind(Policy::ASP);
    return *policies::NewUpdatePolicy(config, 4);
  }();
  for (const bool frozen : {false, true}) {
    plan_.frozen = frozen;
    Use(*asp);  // the range of another table
    now_ = absl::FromUnixMicros(1000);
    Read(1, 0);
    now_ = absl::FromUnixMicros(1400);
    Give(1, 0, 8, 1);
    Give(2, 0, 8, 1);
  }
  EXPECT_TRUE(table_.stats.workers.empty());
  EXPECT_EQ(table_.stats.total.arrived, 4u);
  EXPECT_EQ(table_.stats.total.applied, 2u);
  EXPECT_EQ(table_.stats.total.dropped, 2u);
  EXPECT_EQ(table_.stats.in_flight.count, 4u);
  EXPECT_EQ(table_.stats.total.age.count, 1u);
  for (const size_t rank : {size_t{1}, size_t{2}}) {
    EXPECT_EQ(workers[rank].arrived, 1u);
    EXPECT_EQ(workers[rank].applied, 1u);
    EXPECT_EQ(workers[rank].dropped, 0u);
  }
  EXPECT_EQ(workers[1].age.max, 400);
  EXPECT_EQ(workers[1].row_staleness.count, 1u);
  EXPECT_EQ(workers[2].version_staleness.count, 1u);
  EXPECT_EQ(workers[0].arrived, 0u);
}

int64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

// A shard may have hundreds of ranges and a thousand workers.
TEST(PullTimesTest, AWorkerCostsFewBytes) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer has a heap of its own";
  constexpr int kRanges = 100, kWorkers = 1000;
  constexpr int64_t kPairs = int64_t{kRanges} * kWorkers;
  const int64_t before = HeapBytes();
  std::vector<server::PullTimes> ranges;
  ranges.reserve(kRanges);
  for (int r = 0; r < kRanges; ++r) ranges.emplace_back(kWorkers, /*reads=*/6, /*by_row=*/false);
  EXPECT_LT(HeapBytes() - before, 8 * kPairs) << "before they read";
  for (int64_t step = 0; step < 20; ++step) {
    for (server::PullTimes& range : ranges) {
      for (int rank = 0; rank < kWorkers; ++rank) {
        range.OnRead(rank, step, /*version=*/step, /*now_us=*/1000 * step + rank, {}, {});
      }
      for (int rank = 0; rank < kWorkers; ++rank) {
        policies::Update update;
        update.rank = rank;
        update.step = update.version_read = step;
        const int32_t read = range.Take(update);
        ASSERT_NE(read, server::PullTimes::kUnknown);
        ASSERT_EQ(range.ReadAt(read), 1000 * step + rank);
        range.Drop(read);
      }
    }
  }
  EXPECT_LT(HeapBytes() - before, 80 * kPairs) << "with a read of each in flight";
}

// A worker that has pushed a step does not push an earlier one any more.
TEST(PullTimesTest, ReadsOfEarlierStepsAreForgotten) {
  server::PullTimes reads(/*workers=*/2, /*reads=*/2, /*by_row=*/false);
  policies::Update update;
  update.rank = 1;
  for (const int64_t step : {3, 4}) reads.OnRead(1, step, /*version=*/7, /*now_us=*/step, {}, {});
  update.step = 4;
  update.version_read = 7;
  const int32_t read = reads.Take(update);
  EXPECT_EQ(reads.ReadAt(read), 4);
  EXPECT_EQ(reads.Take(update), server::PullTimes::kUnknown) << "it belongs to the first update";
  update.step = 3;
  EXPECT_EQ(reads.Take(update), server::PullTimes::kUnknown);
  // The place of step 3 is free, and the one of step 4 is not.
  for (const int64_t step : {5, 6}) reads.OnRead(0, step, /*version=*/8, /*now_us=*/step, {}, {});
  EXPECT_EQ(reads.ReadAt(read), 4);
}

TEST_F(RangeTest, AFrozenTableHoldsNothing) {
  plan_.frozen = true;
  Use(policy_);  // a new range
  Read(0, 0);
  Give(0, 0, 8, 1);
  EXPECT_EQ(range_->held_bytes(), 0u);
  ASSERT_EQ(records_.size(), 1u);
  EXPECT_EQ(records_[0].fate, server::kFateDropped);
  EXPECT_EQ(range_->store().size(), 0) << "neither creates the row";
}

}  // namespace
}  // namespace tandem
