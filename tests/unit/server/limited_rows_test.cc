// Rows that come and go: a store with limits against a map of rows with clocks and counts, through
// random calls, steps of the clock and copies in progress. Also the parts of the rules alone.
#include "server/rows/row_limiter.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/initializer.h"
#include "optim/optimizer.h"
#include "server/rows/row_table.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using server::Candidate;
using server::CandidateValues;
using server::EvictedKeys;
using server::RowCounts;
using server::RowIndex;
using server::RowLimits;
using server::RowTable;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr uint32_t kNoRow = RowIndex::kNoRow;
constexpr int kDim = 3;

std::unique_ptr<optim::RowOptimizer> NewAdagrad() {
  Optimizer config;
  config.set_kind(Optimizer::ADAGRAD);
  config.set_learning_rate(0.05);
  config.set_initial_accumulator(0.125);  // so that forgotten slots are seen
  return *optim::NewRowOptimizer(config);
}

// ---- the model --------------------------------------------------------------------------------

struct ModelRow {
  int64_t clock = 0;
  std::vector<float> weights, slots;
};
struct ModelCandidate {
  int64_t clock = 0;
  uint32_t count = 0;
};
// All that exists at a moment.
struct ModelState {
  int64_t version = 0;
  std::map<uint64_t, ModelRow> rows;
  std::map<uint64_t, ModelCandidate> candidates;
};

// The rules, one key after the other. Rows and candidates that are too old leave at once. Of equal
// clocks LRU takes the largest hash first.
class Model {
 public:
  Model(const RowTable::Options& options, const RowIndex& hashes)
      : options_(options), limits_(options.limits), hashes_(hashes) {}

  void Advance(int64_t version) {
    state_.version = version;
    if (limits_.max_age > 0) EraseOlder(limits_.max_age, &state_.rows);
    if (limits_.within > 0) EraseOlder(limits_.within, &state_.candidates);
  }

  std::vector<float> Read(uint64_t key) const {
    const auto row = state_.rows.find(key);
    if (row != state_.rows.end()) return row->second.weights;
    return limits_.zeros ? std::vector<float>(kDim) : Fresh(key).weights;
  }

  // The update of all keys; gradients [keys, kDim]. Returns which keys were not refused.
  std::vector<bool> Update(const std::vector<uint64_t>& keys, const std::vector<float>& gradients,
                           float scale) {
    std::vector<bool> there(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = state_.rows.find(keys[i]);
      there[i] = row != state_.rows.end();
      if (there[i]) row->second.clock = state_.version;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!there[i]) there[i] = Enters(keys[i]) && Create(keys[i]) != nullptr;
      if (!there[i]) {
        ++refused_;
        continue;
      }
      ModelRow& row = state_.rows.at(keys[i]);
      float* weights[] = {row.weights.data()};
      float* slots[] = {row.slots.data()};
      options_.optimizer->Apply(kDim, scale, {.number = 1},
                                absl::MakeConstSpan(gradients).subspan(i * kDim, kDim), weights,
                                slots);
    }
    return there;
  }

  void Assign(uint64_t key, absl::Span<const float> weights) {
    const auto found = state_.rows.find(key);
    ModelRow* const row = found != state_.rows.end() ? &found->second : Create(key);
    if (row == nullptr) {
      ++refused_;
      return;
    }
    row->clock = state_.version;
    row->weights.assign(weights.begin(), weights.end());
  }

  // AT_BUDGET: whether the store may grow.
  void set_may_grow(bool may) { may_grow_ = may; }
  const ModelState& state() const { return state_; }
  uint64_t refused() const { return refused_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t created() const { return created_; }

 private:
  template <typename Entries>
  void EraseOlder(int64_t age, Entries* entries) {
    for (auto it = entries->begin(); it != entries->end();) {
      it = state_.version - it->second.clock > age ? entries->erase(it) : std::next(it);
    }
  }
  ModelRow Fresh(uint64_t key) const {
    ModelRow row;
    row.clock = state_.version;
    row.weights.resize(kDim);
    row.slots.resize(static_cast<size_t>(options_.optimizer->slots_per_row(kDim)));
    optim::InitRow(options_.initializer, options_.seed, key, absl::MakeSpan(row.weights));
    options_.optimizer->InitSlots(kDim, absl::MakeSpan(row.slots));
    return row;
  }
  bool Enters(uint64_t key) {
    if (limits_.probability < 1) {
      const uint64_t seed = HashCombine(HashCombine(options_.seed, HashName("admission")), key);
      return Random(HashCombine(seed, static_cast<uint64_t>(state_.version)))
          .Bernoulli(limits_.probability);
    }
    if (limits_.threshold <= 1) return true;
    const auto found = state_.candidates.find(key);
    const bool known = found != state_.candidates.end();
    const uint32_t count = known ? found->second.count + 1 : 1;
    if (count >= static_cast<uint32_t>(limits_.threshold)) return true;
    const bool full =
        limits_.max_rows > 0 && static_cast<int64_t>(state_.candidates.size()) >= limits_.max_rows;
    if (known || !full || EvictOldest(&state_.candidates)) {
      state_.candidates[key] = {state_.version, count};
    }
    return false;
  }
  ModelRow* Create(uint64_t key) {
    const bool full =
        limits_.max_rows > 0 && static_cast<int64_t>(state_.rows.size()) >= limits_.max_rows;
    if (full || (limits_.at_budget && !may_grow_)) {
      if (!EvictOldest(&state_.rows)) return nullptr;
      ++evicted_;
    }
    state_.candidates.erase(key);
    ++created_;
    return &(state_.rows[key] = Fresh(key));
  }
  template <typename Entries>
  bool EvictOldest(Entries* entries) {
    auto oldest = entries->end();
    for (auto it = entries->begin(); it != entries->end(); ++it) {
      if (it->second.clock == state_.version) continue;
      if (oldest == entries->end() || Order(*it) < Order(*oldest)) oldest = it;
    }
    if (oldest == entries->end()) return false;
    entries->erase(oldest);
    return true;
  }
  template <typename Entry>
  std::pair<int64_t, uint64_t> Order(const Entry& entry) const {
    return {entry.second.clock, ~hashes_.Hash(entry.first)};
  }

  const RowTable::Options options_;
  const RowLimits limits_;
  const RowIndex& hashes_;
  ModelState state_;
  bool may_grow_ = true;
  uint64_t refused_ = 0, evicted_ = 0, created_ = 0;
};

// Drives a store and the model with the same random calls and compares all they answer.
class LimitedRun {
 public:
  LimitedRun(const RowLimits& limits, const optim::RowOptimizer* optimizer, uint64_t seed)
      : random_(seed) {
    options_.dim = kDim;
    options_.salt = 0x5a17;
    options_.seed = 0x5eed;
    options_.optimizer = optimizer;
    options_.limits = limits;
    options_.may_grow = [this](size_t bytes) {
      EXPECT_GT(bytes, 0u);
      return may_grow_;
    };
    options_.counts = &counts_;
    store_ = std::make_unique<RowTable>(options_);
    model_ = std::make_unique<Model>(options_, hashes_);
  }

  void Step() {
    keys_.resize(random_.Uniform(60));
    for (uint64_t& key : keys_) key = Mix64(random_.Uniform(random_.Bernoulli(0.5) ? 60 : 400));
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    Shuffle();
    switch (random_.Uniform(8)) {
      case 0:
        return Pull();
      case 1:
        return Find();
      case 2:
        return Assign();
      case 3:
      case 4:
        return Update();
      case 5:
        return Push();
      case 6:
        return Advance();
      default:
        return Copy();
    }
  }

  // The store holds what the model has, and the sweep leaves nothing that is too old.
  void Finish() {
    FinishCopy();
    const RowLimits& limits = options_.limits;
    // A sweep may wait for as many entries as there are, and one may end early with a pass.
    const int64_t versions = 3 * (std::max(limits.max_age, limits.within) + 2);
    for (int64_t i = 0; i < versions; ++i) MoveTo(version() + 1);
    EXPECT_EQ(store_->size(), static_cast<int64_t>(model_->state().rows.size()));
    EXPECT_EQ(store_->candidates(), static_cast<int64_t>(model_->state().candidates.size()));
    EXPECT_EQ(counts_.admitted, model_->created());
    EXPECT_EQ(counts_.refused, model_->refused());
    EXPECT_EQ(counts_.admitted - counts_.evicted, static_cast<uint64_t>(store_->size()));
    if (limits.max_age == 0) {
      EXPECT_EQ(counts_.evicted, model_->evicted());
    }
  }

  const RowCounts& counts() const { return counts_; }
  uint64_t copies() const { return copies_; }

 private:
  int64_t version() const { return model_->state().version; }

  void Shuffle() {
    for (size_t i = keys_.size(); i > 1; --i) std::swap(keys_[i - 1], keys_[random_.Uniform(i)]);
  }
  std::vector<float> RandomFloats(size_t count) {
    std::vector<float> values(count);
    for (float& x : values) x = static_cast<float>(random_.Normal());
    return values;
  }

  void Pull() {
    std::vector<float> out(keys_.size() * kDim);
    const size_t absent = store_->Pull(keys_, absl::MakeSpan(out));
    size_t want = 0;
    for (size_t i = 0; i < keys_.size(); ++i) {
      want += model_->state().rows.count(keys_[i]) == 0 ? 1 : 0;
      ASSERT_EQ(absl::MakeConstSpan(out).subspan(i * kDim, kDim),
                absl::MakeConstSpan(model_->Read(keys_[i])))
          << i;
    }
    ASSERT_EQ(absent, want);
  }
  void Find() {
    std::vector<uint32_t> numbers(keys_.size());
    store_->Find(keys_, absl::MakeSpan(numbers));
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto row = model_->state().rows.find(keys_[i]);
      ASSERT_EQ(numbers[i] != kNoRow, row != model_->state().rows.end()) << i;
      if (numbers[i] == kNoRow) continue;
      ASSERT_EQ(store_->Weights(numbers[i]), absl::MakeConstSpan(row->second.weights));
      ASSERT_EQ(store_->Slots(numbers[i]), absl::MakeConstSpan(row->second.slots));
      if (options_.limits.max_age == 0) continue;
      ASSERT_EQ(store_->PresentUntil(keys_[i]), row->second.clock + options_.limits.max_age);
    }
  }
  void Update() {
    const auto gradients = RandomFloats(keys_.size() * kDim);
    std::vector<uint32_t> numbers(keys_.size());
    TANDEM_CHECK_OK(store_->RowsForUpdate(keys_, {}, absl::MakeSpan(numbers)));
    store_->ApplyToRows(keys_, numbers, gradients, 0.5f, {.number = 1});
    const std::vector<bool> there = model_->Update(keys_, gradients, 0.5f);
    std::vector<uint32_t> rows;
    for (size_t i = 0; i < keys_.size(); ++i) {
      ASSERT_EQ(numbers[i] != kNoRow, there[i]) << i;
      if (there[i]) rows.push_back(numbers[i]);
    }
    std::sort(rows.begin(), rows.end());
    ASSERT_EQ(std::unique(rows.begin(), rows.end()), rows.end()) << "two keys have one row";
  }
  void Push() {
    const auto gradients = RandomFloats(keys_.size() * kDim);
    TANDEM_CHECK_OK(store_->Push(keys_, gradients, 2, {.number = 1}));
    model_->Update(keys_, gradients, 2);
  }
  void Assign() {
    const auto weights = RandomFloats(keys_.size() * kDim);
    TANDEM_CHECK_OK(store_->Assign(keys_, weights, {}));
    for (size_t i = 0; i < keys_.size(); ++i) {
      model_->Assign(keys_[i], absl::MakeConstSpan(weights).subspan(i * kDim, kDim));
    }
  }

  // Rarely by so much that all low bits of a clock have turned round. (Then LRU no longer knows
  // which of the old rows is the oldest.)
  void Advance() {
    if (random_.Bernoulli(0.2)) {
      may_grow_ = !may_grow_;
      model_->set_may_grow(may_grow_);
    }
    const RowLimits& limits = options_.limits;
    const bool exact = limits.max_rows == 0 && !limits.at_budget;
    int64_t by = 1 + static_cast<int64_t>(random_.Uniform(3));
    if (random_.Bernoulli(0.05)) by += static_cast<int64_t>(random_.Uniform(100));
    if (exact && random_.Bernoulli(0.02)) by += (int64_t{1} << 24) * (1 + random_.Uniform(300));
    if (exact && random_.Bernoulli(0.02)) by += int64_t{1} << 33;
    MoveTo(version() + by);
  }
  void MoveTo(int64_t version) {
    store_->Advance(version);
    model_->Advance(version);
  }

  // Marks a copy, copies a slice of it, or compares a complete one with the model at the mark.
  void Copy() {
    if (!copy_.has_value()) {
      copy_ = store_->NewCopies(blocks_);
      store_->set_copies(&*copy_);
      marked_ = model_->state();
      cursor_ = 0;
      return;
    }
    if (random_.Bernoulli(0.05)) cursor_ = 0;  // as for a range that leaves
    cursor_ = store_->CopyRows(cursor_, 1 + random_.Uniform(200), &*copy_);
    if (cursor_ == 0) CompareCopy();
  }
  void FinishCopy() {
    if (!copy_.has_value()) return;
    while ((cursor_ = store_->CopyRows(cursor_, 100, &*copy_)) != 0) {
    }
    CompareCopy();
  }
  void CompareCopy() {
    store_->set_copies(nullptr);
    ++copies_;
    const server::CopyList& rows = copy_->rows();
    ASSERT_EQ(rows.size(), marked_.rows.size());
    for (uint32_t i = 0; i < rows.size(); ++i) {
      const auto row = marked_.rows.find(rows.key(i));
      ASSERT_NE(row, marked_.rows.end()) << "twice, or not there at the mark";
      std::vector<float> floats = row->second.weights;
      floats.insert(floats.end(), row->second.slots.begin(), row->second.slots.end());
      ASSERT_EQ(absl::MakeConstSpan(rows.row(i), floats.size()), absl::MakeConstSpan(floats));
      uint32_t age = 0;
      std::memcpy(&age, rows.row(i) + floats.size(), sizeof age);
      const bool evicts = options_.limits.evicts();
      ASSERT_EQ(age, evicts ? marked_.version - row->second.clock : 0);
      marked_.rows.erase(row);
    }
    ASSERT_EQ(copy_->candidates().size(), marked_.candidates.size());
    for (uint32_t i = 0; i < copy_->candidates().size(); ++i) {
      const Candidate candidate = server::RowCopies::CandidateOf(copy_->candidates(), i);
      const auto found = marked_.candidates.find(candidate.key);
      ASSERT_NE(found, marked_.candidates.end()) << "twice, or not there at the mark";
      ASSERT_EQ(candidate.count, found->second.count);
      if (options_.limits.within > 0) {
        ASSERT_EQ(candidate.age, marked_.version - found->second.clock);
      }
      marked_.candidates.erase(found);
    }
    copy_.reset();
  }

  RowTable::Options options_;
  Random random_;
  server::PageArena arena_;
  const RowIndex hashes_{0x5a17, 0, &arena_};
  RowCounts counts_;
  bool may_grow_ = true;
  std::unique_ptr<RowTable> store_;
  std::unique_ptr<Model> model_;
  std::vector<uint64_t> keys_;
  std::shared_ptr<server::CopyBlocks> blocks_ = std::make_shared<server::CopyBlocks>();
  std::optional<server::RowCopies> copy_;  // in progress
  ModelState marked_;                      // what is missing in it
  uint64_t cursor_ = 0, copies_ = 0;
};

struct Kind {
  const char* name;
  RowLimits limits;
};

// Few enough rows for one slice of the hashes, so that LRU is exact.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  const auto add = [&kinds](const char* name) -> RowLimits& {
    return kinds.emplace_back(Kind{name, {}}).limits;
  };
  add("AGE").max_age = 7;
  add("AGE of one version").max_age = 1;
  add("zeros").zeros = true;
  RowLimits* limits = &add("AGE and zeros");
  limits->max_age = 20;
  limits->zeros = true;
  limits = &add("COUNT for ever");
  limits->threshold = 3;
  limits = &add("COUNT and AGE");
  limits->threshold = 2;
  limits->within = limits->max_age = 9;
  limits = &add("COUNT that forgets sooner");
  limits->threshold = 100;
  limits->within = 3;
  limits->max_age = 30;
  add("PROBABILITY").probability = 0.3;
  limits = &add("PROBABILITY and AGE");
  limits->probability = 0.6;
  limits->max_age = 5;
  add("LRU").max_rows = 100;
  add("LRU of less than an update").max_rows = 5;
  limits = &add("LRU and COUNT");
  limits->max_rows = 60;
  limits->threshold = 2;
  limits = &add("LRU and COUNT that forgets");
  limits->max_rows = 40;
  limits->threshold = 3;
  limits->within = 12;
  add("AT_BUDGET").at_budget = true;
  return kinds;
}

TEST(RowLimiterTest, AgreesWithAMapOfClocksAndCounts) {
  const auto optimizer = NewAdagrad();
  for (const Kind& kind : Kinds()) {
    uint64_t copies = 0, evicted = 0, refused = 0;
    for (uint64_t seed = TestSeed(); seed < TestSeed() + 25; ++seed) {
      SCOPED_TRACE(absl::StrCat(kind.name, "; rerun with --seed=", seed));
      LimitedRun run(kind.limits, optimizer.get(), seed);
      for (int i = 0; i < 300 && !::testing::Test::HasFatalFailure(); ++i) run.Step();
      if (::testing::Test::HasFatalFailure()) return;
      run.Finish();
      copies += run.copies();
      evicted += run.counts().evicted;
      refused += run.counts().refused;
    }
    EXPECT_GT(copies, 25u) << kind.name;
    if (kind.limits.evicts()) {
      EXPECT_GT(evicted, 500u) << kind.name;
    }
    if (kind.limits.counts() || kind.limits.probability < 1) {
      EXPECT_GT(refused, 1000u) << kind.name;
    }
  }
}

// ---- larger stores ----------------------------------------------------------------------------

class LimitedStoreTest : public ::testing::Test {
 protected:
  // `max_bytes`: of the rows, the index and the clocks.
  void Start(const RowLimits& limits, size_t max_bytes = size_t{1} << 60) {
    store_ = nullptr;
    arena_ = nullptr;
    budget_ = std::make_unique<server::MemoryBudget>(max_bytes);
    arena_ = std::make_unique<server::PageArena>(budget_.get());
    RowTable::Options options;
    options.arena = arena_.get();
    options.dim = kDim;
    options.salt = 3;
    options.seed = 5;
    options.optimizer = optimizer_.get();
    options.limits = limits;
    options.counts = &counts_;
    store_ = std::make_unique<RowTable>(options);
  }
  std::vector<uint32_t> Update(const std::vector<uint64_t>& keys,
                               const std::vector<int64_t>& read_at = {}) {
    std::vector<uint32_t> rows(keys.size());
    TANDEM_CHECK_OK(store_->RowsForUpdate(keys, read_at, absl::MakeSpan(rows)));
    store_->ApplyToRows(keys, rows, std::vector<float>(keys.size() * kDim, 1), 1, {.number = 1});
    return rows;
  }
  bool Has(uint64_t key) const {
    uint32_t row = 0;
    store_->Find({&key, 1}, {&row, 1});
    return row != kNoRow;
  }

  const std::unique_ptr<optim::RowOptimizer> optimizer_ = NewAdagrad();
  RowCounts counts_;
  std::unique_ptr<server::MemoryBudget> budget_;
  std::unique_ptr<server::PageArena> arena_;
  std::unique_ptr<RowTable> store_;
};

// Half of all updates are of 200 keys, the others of keys that never come back. The range keeps the
// 200. (A range that evicts any row keeps about 165 of them.)
TEST_F(LimitedStoreTest, LruKeepsTheRowsThatAreUsed) {
  RowLimits limits;
  limits.max_rows = 1000;
  Start(limits);
  Random random(TestSeed());
  uint64_t next = 1 << 20;
  for (int64_t version = 1; version <= 2000; ++version) {
    std::vector<uint64_t> keys;
    for (int i = 0; i < 20; ++i) keys.push_back(next++);
    for (int i = 0; i < 20; ++i) keys.push_back(random.Uniform(200));
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    ASSERT_THAT(Update(keys), ::testing::Not(::testing::Contains(kNoRow)));
    store_->Advance(version);
    ASSERT_LE(store_->size(), limits.max_rows);
  }
  int64_t used = 0;
  for (uint64_t key = 0; key < 200; ++key) used += Has(key) ? 1 : 0;
  EXPECT_GT(used, 180);
  EXPECT_EQ(counts_.admitted - counts_.evicted, static_cast<uint64_t>(store_->size()));
  EXPECT_EQ(counts_.refused, 0u);
}

// No row of an update gives its number to another row of the update.
TEST_F(LimitedStoreTest, AnUpdateThatIsTooLargeIsRefusedInPart) {
  RowLimits limits;
  limits.max_rows = 1000;
  Start(limits);
  std::vector<uint64_t> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(i);
  std::vector<uint32_t> rows = Update(keys);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), kNoRow), 4000);
  EXPECT_EQ(counts_.refused, 4000u);
  store_->Advance(1);
  for (uint64_t& key : keys) key = ~key;
  rows = Update(keys);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), kNoRow), 4000);
  EXPECT_EQ(counts_.evicted, 1000u);
  EXPECT_EQ(store_->size(), 1000);
}

// Rows and candidates that nobody updates leave the memory, without a read or an update. The sweep
// gives their memory back.
TEST_F(LimitedStoreTest, TheSweepErasesWhatIsTooOld) {
  RowLimits limits;
  limits.max_age = limits.within = 50;
  limits.threshold = 2;
  Start(limits);
  std::vector<uint64_t> keys(20'000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(i);
  Update(keys);
  keys.resize(10'000);
  Update(keys);
  EXPECT_EQ(store_->size(), 10'000);
  EXPECT_EQ(store_->candidates(), 10'000);
  for (int64_t version = 1; version <= 50; ++version) store_->Advance(version);
  EXPECT_EQ(store_->size(), 10'000) << "not older than 50 yet";
  EXPECT_EQ(store_->candidates(), 10'000);
  const size_t bytes = arena_->resident();
  for (int64_t version = 51; version <= 200; ++version) store_->Advance(version);
  EXPECT_EQ(store_->size(), 0);
  EXPECT_EQ(store_->candidates(), 0);
  EXPECT_EQ(counts_.evicted, 10'000u);
  EXPECT_LE(arena_->resident(), bytes / 20);
  Update(keys);
  Update(keys);
  EXPECT_EQ(store_->size(), 10'000);
  EXPECT_LE(arena_->resident(), bytes);
}

// Each version brings more rows than the sweep visits if nothing is new.
TEST_F(LimitedStoreTest, TheSweepKeepsUpWithNewRows) {
  RowLimits limits;
  limits.max_age = 2;
  Start(limits);
  std::vector<uint64_t> keys(10'000);
  uint64_t next = 0;
  for (int64_t version = 1; version <= 40; ++version) {
    for (uint64_t& key : keys) key = Mix64(next++);
    Update(keys);
    store_->Advance(version);
  }
  EXPECT_LE(store_->size(), 80'000) << "of 400,000; some 20,000 are not too old";
}

// When the end of a pass has found nothing more to visit, the sweep does not walk through the empty
// index at each version. It comes to a new row in its time, once in 50 versions.
TEST_F(LimitedStoreTest, TheSweepOwesNothingToAnEmptyIndex) {
  RowLimits limits;
  limits.max_age = 50;
  for (uint64_t run = 0; run < 10; ++run) {
    Start(limits);
    std::vector<uint64_t> keys(20'000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(run << 32 | i);
    Update(keys);
    for (int64_t version = 1; version <= 200; ++version) store_->Advance(version);
    ASSERT_EQ(store_->size(), 0);
    Update({run});
    for (int64_t version = 201; version <= 290; ++version) {
      store_->Advance(version);
      if (version == 210) Update({run});
    }
    EXPECT_FALSE(Has(run)) << "too old from version 261 on";
    EXPECT_EQ(store_->size(), 1) << "the sweep was there at about version 250, and comes again";
    for (int64_t version = 291; version <= 400; ++version) store_->Advance(version);
    EXPECT_EQ(store_->size(), 0);
  }
}

// When most rows are gone, the others get other numbers. Their values and clocks, and the
// candidates, stay.
TEST_F(LimitedStoreTest, RowsThatStayGetOtherNumbers) {
  RowLimits limits;
  limits.max_age = limits.within = 50;
  limits.threshold = 2;
  for (const bool keeps : {false, true}) {
    Start(limits);
    store_->settings().keeps_numbers = keeps;
    std::vector<uint64_t> keys(5000);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(i);
    Update(keys);
    Update(keys);
    const std::vector<uint64_t> kept(keys.end() - 500, keys.end());
    const size_t bytes = arena_->resident();
    for (int64_t version = 1; version <= 80; ++version) {
      store_->Advance(version);
      if (version % 40 == 0) Update(kept);
    }
    Update({1'000'001});  // a candidate
    std::vector<float> before(kept.size() * kDim), after(before);
    store_->Pull(kept, absl::MakeSpan(before));
    for (int64_t version = 81; version <= 130; ++version) store_->Advance(version);
    EXPECT_EQ(store_->size(), 500);
    std::vector<uint32_t> rows(kept.size());
    store_->Find(kept, absl::MakeSpan(rows));
    std::sort(rows.begin(), rows.end());
    EXPECT_EQ(rows.front() == 4500 && rows.back() == 4999, keeps);
    EXPECT_EQ(rows.back() < 2000, !keeps);
    EXPECT_EQ(std::unique(rows.begin(), rows.end()), rows.end());
    EXPECT_EQ(arena_->resident() < bytes / 2, !keeps);
    EXPECT_EQ(store_->Pull(kept, absl::MakeSpan(after)), 0u);
    EXPECT_EQ(after, before);
    EXPECT_EQ(store_->PresentUntil(kept[7]), 130);
    EXPECT_EQ(store_->candidates(), 1);
    EXPECT_NE(Update({1'000'001})[0], kNoRow) << "its second update";
    store_->Advance(131);
    EXPECT_FALSE(Has(kept[7]));
    EXPECT_TRUE(Has(1'000'001));
  }
}

// With AT_BUDGET it is none, even if nobody says beforehand that the memory is used up: rows make
// room for others, and ids for which there is none are refused.
TEST_F(LimitedStoreTest, NoMemoryEvictsWithAtBudget) {
  for (const int threshold : {1, 2}) {
    RowLimits limits;
    limits.at_budget = true;
    limits.threshold = threshold;
    Start(limits, size_t{256} << 10);
    int64_t version = 0;
    for (uint64_t key = 0; key < 20'000; ++key) {
      if (key % 50 == 0) store_->Advance(++version);
      for (int i = 0; i < threshold; ++i) {
        uint32_t row = 0;
        TANDEM_CHECK_OK(store_->RowsForUpdate({&key, 1}, {}, {&row, 1}));
      }
      ASSERT_LE(budget_->used(), budget_->limit());
    }
    EXPECT_GT(counts_.evicted, 5000u);
    EXPECT_GT(store_->size(), 500);
    EXPECT_EQ(counts_.admitted - counts_.evicted, static_cast<uint64_t>(store_->size()));
    counts_ = {};
  }
}

// Without memory for a row, a clock or a candidate, an update is an error. What is there stays.
TEST_F(LimitedStoreTest, NoMemoryIsAnErrorOfTheUpdate) {
  for (const int threshold : {1, 2}) {
    RowLimits limits;
    limits.max_age = 50;
    limits.threshold = threshold;
    Start(limits, size_t{256} << 10);
    absl::Status status;
    uint64_t key = 0;
    for (; status.ok() && key < 100'000; ++key) {
      for (int i = 0; i < threshold && status.ok(); ++i) {
        uint32_t row = 0;
        status = store_->RowsForUpdate({&key, 1}, {}, {&row, 1});
      }
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_GT(key, 1000u);
    EXPECT_LE(arena_->resident(), size_t{256} << 10);
    for (uint64_t there = 0; there + 1 < key; ++there) ASSERT_TRUE(Has(there)) << there;
    EXPECT_EQ(counts_.admitted - counts_.evicted, static_cast<uint64_t>(store_->size()));
    counts_ = {};
  }
}

// A range without rows would never get one, because it has none to evict.
TEST_F(LimitedStoreTest, ALoadWithShareZeroKeepsOneRow) {
  RowLimits limits;
  limits.at_budget = true;
  Start(limits);
  const std::vector<uint64_t> keys = {1, 2, 3};
  const std::vector<float> weights(keys.size() * kDim), slots(weights);
  const std::vector<uint32_t> ages = {3, 1, 2};
  store_->settings().load_share = 0;
  TANDEM_CHECK_OK(store_->Load(keys, weights, slots, ages));
  EXPECT_EQ(store_->size(), 1);
  EXPECT_TRUE(Has(2)) << "the newest";
}

// Rows that do not fit at the start are not evicted, so they cannot come back.
TEST_F(LimitedStoreTest, RowsThatALoadLeavesOutAreNotCounted) {
  RowLimits limits;
  limits.max_rows = 2;
  Start(limits);
  const std::vector<uint64_t> keys = {1, 2, 3, 4};
  const std::vector<float> weights(keys.size() * kDim), slots(weights);
  const std::vector<uint32_t> ages = {4, 3, 2, 1};
  store_->settings().lists_evicted = true;
  TANDEM_CHECK_OK(store_->Load(keys, weights, slots, ages));
  EXPECT_FALSE(Has(1));
  EXPECT_THAT(store_->TakeEvicted(), IsEmpty());
  store_->Advance(1);
  Update({1, 2}, {/*read_at=*/0, 0});
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(counts_.admitted, 2u);
  EXPECT_EQ(counts_.evicted, 2u);
  EXPECT_EQ(counts_.came_back, 0u);
  EXPECT_EQ(counts_.to_fresh_rows, 0u);
  EXPECT_THAT(store_->TakeEvicted(), UnorderedElementsAre(3, 4));
}

// A row that comes back begins anew. Updates that were computed from its former life are counted,
// also when the row is back.
TEST_F(LimitedStoreTest, ARowThatComesBackIsFresh) {
  RowLimits limits;
  limits.max_age = 10;
  Start(limits);
  Update({1});
  std::vector<float> first(kDim), again(kDim);
  store_->Pull(std::vector<uint64_t>{1}, absl::MakeSpan(first));
  for (int64_t version = 1; version <= 12; ++version) store_->Advance(version);
  EXPECT_FALSE(Has(1));
  Update({1, 2}, {/*read_at=*/10, 10});
  store_->Pull(std::vector<uint64_t>{1}, absl::MakeSpan(again));
  EXPECT_EQ(again, first) << "one update of the initial value";
  EXPECT_EQ(counts_.to_fresh_rows, 1u) << "at version 10 the row was there; row 2 is new";
  EXPECT_EQ(counts_.sampled, 1u);
  EXPECT_EQ(counts_.came_back, 1u);
  store_->Advance(13);
  Update({1}, {/*read_at=*/10});
  EXPECT_EQ(counts_.to_fresh_rows, 2u);
  Update({1}, {/*read_at=*/11});
  Update({1}, {server::RowLimiter::kUnknownRead});
  EXPECT_EQ(counts_.to_fresh_rows, 2u) << "at version 11 it was gone";
}

// A checkpoint with ages and candidates goes into a store that may have fewer rows: the youngest.
TEST_F(LimitedStoreTest, OfTooManyLoadedRowsTheOldestAreLeftOut) {
  RowLimits limits;
  limits.max_rows = 100;
  limits.threshold = 3;
  Start(limits);
  store_->StartAt(5);  // rows may be older than the run
  std::vector<uint64_t> keys(200);
  std::vector<uint32_t> ages(200);
  for (uint32_t i = 0; i < 200; ++i) {
    keys[i] = Mix64(i);
    ages[i] = 1 + (i * 77) % 200;
  }
  const std::vector<float> weights(200 * kDim, 1), slots(200 * kDim, 2);
  TANDEM_CHECK_OK(store_->Load(keys, weights, slots, ages));
  EXPECT_EQ(store_->size(), 100);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (ages[i] <= 50) {
      EXPECT_TRUE(Has(keys[i])) << ages[i];
    }
    if (ages[i] > 150) {
      EXPECT_FALSE(Has(keys[i])) << ages[i];
    }
  }
  EXPECT_EQ(counts_.admitted + counts_.evicted + counts_.refused, 0u) << "of the run before";
  for (uint64_t i = 0; i < 300; ++i) {
    TANDEM_CHECK_OK(store_->SetCandidate({Mix64(1000 + i), 2, static_cast<uint32_t>(i % 7)}));
  }
  EXPECT_EQ(store_->candidates(), 100) << "at most as many as rows";
  TANDEM_CHECK_OK(store_->SetCandidate({keys[0], 1, 0}));
  EXPECT_EQ(store_->candidates(), 100) << "it has a row, or there is no older candidate";
}

TEST_F(LimitedStoreTest, ALoadedCandidateGoesOnCounting) {
  RowLimits limits;
  limits.threshold = 3;
  limits.within = 100;
  Start(limits);
  TANDEM_CHECK_OK(store_->SetCandidate({7, 2, 100}));
  TANDEM_CHECK_OK(store_->SetCandidate({8, 2, 101}));  // too old
  TANDEM_CHECK_OK(store_->SetCandidate({9, 100, 0}));  // of a job with another threshold
  EXPECT_EQ(store_->candidates(), 2);
  EXPECT_THAT(Update({7, 8, 9}), ElementsAre(0u, kNoRow, 1u));
  store_->Advance(1);
  EXPECT_THAT(Update({8}), Each(kNoRow));
  EXPECT_THAT(Update({8}), Each(2u));
}

// A file may have any age. The clock that follows must not turn round and look new.
TEST_F(LimitedStoreTest, ALoadedAgeIsNeverTooLarge) {
  RowLimits limits;
  limits.max_rows = 2;
  Start(limits);
  const std::vector<uint64_t> keys = {1, 2};
  const std::vector<uint32_t> ages = {~uint32_t{0}, 5};
  const std::vector<float> weights(2 * kDim, 1);
  TANDEM_CHECK_OK(store_->Load(keys, weights, {}, ages));
  store_->Advance(1);
  Update({3});
  EXPECT_FALSE(Has(1)) << "the oldest";
  EXPECT_TRUE(Has(2));
}

// Where candidates stay for ever, the sweep makes large ages smaller, and its time depends on the
// other keys of the range. A checkpoint does not show it.
TEST_F(LimitedStoreTest, ACopyDoesNotShowWhenTheSweepWasThere) {
  RowLimits limits;
  limits.threshold = 3;
  Start(limits);
  Update({7});
  const auto age = [this] {
    server::RowCopies copies = store_->NewCopies(std::make_shared<server::CopyBlocks>());
    store_->CopyRows(0, 100, &copies);
    return server::RowCopies::CandidateOf(copies.candidates(), 0).age;
  };
  constexpr int64_t kStep = CandidateValues::kMaxUnits / 4;
  int64_t version = 0;
  for (; version <= 3 * kStep; version += kStep) store_->Advance(version);
  EXPECT_EQ(age(), 3 * kStep);
  for (; version <= 12 * kStep + 12; version += kStep + 1) {
    store_->Advance(version);
    EXPECT_EQ(age(), CandidateValues::kMaxUnits) << version;
  }
}

// ---- parts ------------------------------------------------------------------------------------

TEST(CandidateValuesTest, AValueKeepsCountAndAge) {
  for (const int64_t within : {int64_t{0}, int64_t{5}, int64_t{1} << 20, int64_t{1} << 30}) {
    const CandidateValues values(within);
    for (const int64_t version : {int64_t{0}, int64_t{1} << 20, int64_t{1} << 40}) {
      for (const uint32_t count : {1u, 2u, 100u}) {
        const uint32_t value = values.Value(count, version);
        EXPECT_FALSE(RowIndex::IsRow(value));
        EXPECT_NE(value, kNoRow);
        EXPECT_EQ(CandidateValues::Count(value), count);
        for (const int64_t later : {0, 1, 1000, 1 << 20}) {
          const int64_t age = values.Age(value, version + later);
          EXPECT_GE(age, later);
          EXPECT_LT(age, later + values.unit());
          EXPECT_EQ(values.Value(count, version + later - age), value) << "as after a resume";
          // As in a run that begins with the checkpoint, at version 0.
          EXPECT_LT(values.Age(values.Value(count, -age), 0), age + values.unit());
        }
      }
    }
  }
  EXPECT_FALSE(CandidateValues(5).IsExpired(5));
  EXPECT_TRUE(CandidateValues(5).IsExpired(6));
  EXPECT_FALSE(CandidateValues(0).IsExpired(int64_t{1} << 40));
}

TEST(RowIndexTest, ValuesMayBeCandidates) {
  server::PageArena arena;
  RowIndex index(7, 0, &arena);
  const uint32_t candidate = CandidateValues(0).Value(100, -1);  // of all values the largest
  std::map<uint64_t, uint32_t> want;
  for (uint64_t key = 0; key < 3000; ++key) {
    want[key] = key % 3 == 0 ? candidate : static_cast<uint32_t>(key);
    TANDEM_CHECK_OK(index.Insert(key, want[key]));
  }
  for (uint64_t key = 0; key < 3000; key += 2) {
    want[key] = key % 3 == 0 ? static_cast<uint32_t>(key) : candidate;
    index.Set(key, index.Hash(key), want[key]);
  }
  for (const auto& [key, value] : want) EXPECT_EQ(index.Find(key, index.Hash(key)), value);
  // Any cut of the hashes visits each key once.
  for (const uint64_t slices : {1, 2, 8, 1024}) {
    const uint64_t width = ~uint64_t{0} / slices + 1;  // 0 for one slice
    std::map<uint64_t, uint32_t> got;
    for (uint64_t s = 0; s < slices; ++s) {
      const uint64_t begin = s * width;
      index.VisitHashes(begin, begin + width, [&, b = begin](uint64_t key, uint32_t value) {
        EXPECT_GE(index.Hash(key), b);
        EXPECT_TRUE(got.emplace(key, value).second) << key;
      });
    }
    EXPECT_EQ(got, want) << slices;
  }
  EXPECT_FALSE(RowIndex::IsRow(candidate));
  EXPECT_TRUE(RowIndex::IsRow(RowIndex::kLastRow));
}

TEST(RowIndexTest, SaysWhenItWillGrow) {
  server::PageArena arena;
  RowIndex index(7, 0, &arena);
  uint32_t row = 0;
  for (int growths = 0; growths < 3; ++row) {
    const bool grows = index.MustGrow();
    const size_t before = index.MemoryBytes(), more = index.GrowthBytes();
    TANDEM_CHECK_OK(index.Insert(row, row));
    EXPECT_EQ(index.MemoryBytes() > before, grows);
    if (grows) {
      EXPECT_LE(index.MemoryBytes(), before + 2 * more);
    }
    growths += grows ? 1 : 0;
  }
}

// The sample holds a key for its whole time, so that keys which come back are not preferred.
TEST(EvictedKeysTest, TheSampleIsFair) {
  EvictedKeys keys(64);
  Random random(TestSeed());
  uint64_t sampled = 0, came_back = 0;
  std::multimap<int64_t, uint64_t> due;  // keys that come back, by version
  for (int64_t version = 0; version < 100'000; ++version) {
    const uint64_t hash = random.Next64();
    sampled += keys.Add(hash, version, version) ? 1 : 0;
    if (random.Bernoulli(0.25)) due.emplace(version + 1 + random.Uniform(500), hash);
    for (; !due.empty() && due.begin()->first <= version; due.erase(due.begin())) {
      came_back += keys.ComesBack(due.begin()->second, version) ? 1 : 0;
      EXPECT_FALSE(keys.ComesBack(due.begin()->second, version)) << "once";
    }
  }
  EXPECT_GT(sampled, 5000u);
  EXPECT_NEAR(static_cast<double>(came_back) / static_cast<double>(sampled), 0.25, 0.03);
}

TEST(EvictedKeysTest, KnowsTheLastEviction) {
  EvictedKeys keys(1 << 20);
  EXPECT_EQ(keys.newest(), -1);
  const int64_t late = (int64_t{1} << 40) + 5;
  keys.Add(77, late, late + 3);
  EXPECT_EQ(keys.newest(), late);
  EXPECT_EQ(keys.DiedAt(77, late + 1000), late);
  EXPECT_EQ(keys.DiedAt(78, late + 1000), -1);
  keys.Add(77, late + 10, late + 9);  // dies with the next version
  EXPECT_EQ(keys.DiedAt(77, late + 9), late + 10);
  EXPECT_EQ(keys.MemoryBytes(), size_t{64} << 10);
  EXPECT_EQ(EvictedKeys(0).MemoryBytes(), size_t{1} << 10);
  EXPECT_EQ(EvictedKeys(4096).MemoryBytes(), size_t{4} << 10) << "a byte a row";
}

}  // namespace
}  // namespace tandem
