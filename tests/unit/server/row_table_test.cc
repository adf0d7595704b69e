// The range store against the simplest thing that could work, and what it promises about memory:
// how much it takes, when it moves, and that a steady state allocates nothing.
#include "server/rows/row_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/initializer.h"
#include "optim/row_rounding.h"
#include "server/rows/row_index.h"
#include "server/rows/row_slabs.h"
#include "tests/round_row.h"
#include "tests/test_seed.h"
#include "tests/unit/count_allocations.h"
#include "tests/unit/server/sorted_keys.h"

namespace tandem {
namespace {

constexpr int64_t kStepsTaken = 5;  // rows have their last update in step 1

std::unique_ptr<optim::RowOptimizer> MakeOptimizer(Optimizer::Kind kind, bool catch_up = false) {
  Optimizer config;
  config.set_kind(kind);
  config.set_catch_up(catch_up);
  config.set_learning_rate(0.05);
  config.set_initial_accumulator(0.125);  // so that forgotten slots are seen
  return *optim::NewRowOptimizer(config);
}

server::RowTable::Options MakeOptions(const optim::RowOptimizer* optimizer, int dim) {
  server::RowTable::Options options;
  options.dim = dim;
  options.salt = 0x5a17;
  options.seed = 0x5eed;
  options.optimizer = optimizer;
  return options;
}

// The model: a map of vectors, one row at a time.
class ModelStore {
 public:
  explicit ModelStore(const server::RowTable::Options& options) : options_(options) {}

  struct Row {
    std::vector<float> weights, slots;
    optim::RowHead head;
  };

  Row First(uint64_t key) const {
    Row row;
    row.weights.resize(static_cast<size_t>(options_.dim));
    row.slots.resize(static_cast<size_t>(options_.optimizer->slots_per_row(options_.dim)));
    optim::InitRow(options_.initializer, options_.seed, key, absl::MakeSpan(row.weights));
    options_.optimizer->InitSlots(options_.dim, absl::MakeSpan(row.slots));
    return Nearest(std::move(row));
  }
  // The row as it is after it was stored and read again.
  Row Nearest(Row row) const {
    if (!row.head.hot()) row.head.exponent = FirstHead(options_.types, row.weights).exponent;
    optim::RoundToNearest(row.head.hot() ? options_.types.hot : options_.types.row,
                          absl::MakeSpan(row.weights));
    optim::RoundToNearest(options_.types.state, Elements(&row));
    return row;
  }
  Row& Create(uint64_t key) {
    const auto found = rows_.find(key);
    return found != rows_.end() ? found->second : rows_.emplace(key, First(key)).first->second;
  }
  Row Read(uint64_t key) const {  // as workers read it
    const auto found = rows_.find(key);
    Row row = found != rows_.end() ? found->second : First(key);
    options_.optimizer->CatchUp(options_.dim, kStepsTaken, row.weights.data(), row.slots.data(),
                                row.weights.data(), row.slots.data());
    return row;
  }
  void Push(uint64_t key, absl::Span<const float> gradient, float scale,
            const optim::OptimizerStep& step) {
    Row& row = Create(key);
    float* weights[] = {row.weights.data()};
    float* slots[] = {row.slots.data()};
    options_.optimizer->Apply(options_.dim, scale, step, gradient, weights, slots);
    RoundRow(options_.types, *options_.optimizer, options_.seed, step.stamp, key,
             absl::MakeSpan(row.weights), absl::MakeSpan(row.slots), &row.head);
  }
  const std::unordered_map<uint64_t, Row>& rows() const { return rows_; }

 private:
  // The slots that have the type of the state.
  absl::Span<float> Elements(Row* row) const {
    const auto numbers = static_cast<size_t>(options_.optimizer->numbers_per_row());
    return absl::MakeSpan(row->slots).first(row->slots.size() - numbers);
  }

  const server::RowTable::Options options_;
  std::unordered_map<uint64_t, Row> rows_;
};

// Drives a store and its model with the same random calls and compares all they answer.
class ModelRun {
 public:
  ModelRun(const server::RowTable::Options& options, uint64_t seed)
      : store_(options), model_(options), random_(seed), dim_(static_cast<size_t>(options.dim)) {
    store_.settings().steps_taken = kStepsTaken;
  }

  void Step() {
    keys_.resize(random_.Uniform(120));
    for (uint64_t& key : keys_) key = SomeKey();
    switch (random_.Uniform(5)) {
      case 0:
        return Pull();
      case 1:
        return Find();
      case 2:
        return Push();
      case 3:
        return PushByNumber();
      default:
        return Assign();
    }
  }

  void CompareAll() {
    ASSERT_EQ(store_.size(), static_cast<int64_t>(model_.rows().size()));
    std::vector<uint64_t> keys = SortedKeys(store_);
    ASSERT_EQ(keys.size(), model_.rows().size());
    std::vector<uint32_t> numbers(keys.size());
    TANDEM_CHECK_OK(store_.FindOrCreate(keys, absl::MakeSpan(numbers)));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = model_.rows().find(keys[i]);
      ASSERT_NE(row, model_.rows().end()) << keys[i];
      EXPECT_EQ(StoredRow(numbers[i]), AllOf(row->second));
    }
  }

 private:
  std::vector<float> StoredRow(uint32_t number) const {
    std::vector<float> row(dim_ + static_cast<size_t>(store_.slots_per_row()));
    store_.CopyRow(number, row.data());
    return row;
  }
  static std::vector<float> AllOf(const ModelStore::Row& row) {
    std::vector<float> all = row.weights;
    all.insert(all.end(), row.slots.begin(), row.slots.end());
    return all;
  }
  // The next step. Its stamp never repeats.
  optim::OptimizerStep NextStep() { return {.number = 1, .stamp = ++stamp_}; }

  // Old keys often, new ones sometimes, and the ends of the range of keys.
  uint64_t SomeKey() {
    if (random_.Bernoulli(0.02)) return random_.Bernoulli(0.5) ? 0 : ~uint64_t{0};
    const uint64_t n = random_.Uniform(3000);
    return random_.Bernoulli(0.5) ? n : Mix64(n);
  }
  void MakeUnique() {
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
  }
  std::vector<float> RandomFloats(size_t count) {
    std::vector<float> values(count);
    for (float& x : values) x = static_cast<float>(random_.Normal());
    return values;
  }
  absl::Span<const float> Part(const std::vector<float>& values, size_t i, size_t width) const {
    return absl::MakeConstSpan(values).subspan(i * width, width);
  }

  void Pull() {  // repeated keys are allowed
    const int64_t size = store_.size();
    std::vector<float> out(keys_.size() * dim_);
    store_.Pull(keys_, absl::MakeSpan(out));
    for (size_t i = 0; i < keys_.size(); ++i) {
      ASSERT_EQ(Part(out, i, dim_), absl::MakeConstSpan(model_.Read(keys_[i]).weights));
    }
    const server::RowTable::Options& options = store_.options();
    if (!options.optimizer->catches_up() && options.types.hot_updates == 0) ExpectStored(out);
    ASSERT_EQ(store_.size(), size) << "a pull creates nothing";
  }
  // The rows as they travel have the same values.
  void ExpectStored(const std::vector<float>& want) const {
    const Table::Dtype type = store_.options().types.row;
    const size_t words = optim::WireWords(type, dim_);
    std::vector<float> wire(keys_.size() * words), out(want.size());
    store_.PullStored(keys_, words, absl::MakeSpan(wire));
    optim::ExpandWireRows(type, dim_, keys_.size(), wire.data(), out.data());
    ASSERT_EQ(out, want);
  }
  void Find() {
    std::vector<uint32_t> numbers(keys_.size());
    store_.Find(keys_, absl::MakeSpan(numbers));
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto row = model_.rows().find(keys_[i]);
      ASSERT_EQ(numbers[i] != server::RowIndex::kNoRow, row != model_.rows().end());
      if (row == model_.rows().end()) continue;
      ASSERT_EQ(StoredRow(numbers[i]), AllOf(row->second));
    }
  }
  void Push() {
    MakeUnique();
    const auto gradients = RandomFloats(keys_.size() * dim_);
    const optim::OptimizerStep step = NextStep();
    TANDEM_CHECK_OK(store_.Push(keys_, gradients, 0.5f, step));
    for (size_t i = 0; i < keys_.size(); ++i) {
      model_.Push(keys_[i], Part(gradients, i, dim_), 0.5f, step);
    }
  }
  void PushByNumber() {
    MakeUnique();
    const auto gradients = RandomFloats(keys_.size() * dim_);
    std::vector<uint32_t> numbers(keys_.size());
    TANDEM_CHECK_OK(store_.FindOrCreate(keys_, absl::MakeSpan(numbers)));
    const optim::OptimizerStep step = NextStep();
    store_.ApplyToRows(keys_, numbers, gradients, 2, step);
    for (size_t i = 0; i < keys_.size(); ++i) {
      model_.Push(keys_[i], Part(gradients, i, dim_), 2, step);
    }
  }
  void Assign() {
    const bool with_slots = random_.Bernoulli(0.5);
    const size_t slots_per_row = static_cast<size_t>(store_.slots_per_row());
    const auto weights = RandomFloats(keys_.size() * dim_);
    auto slots = RandomFloats(with_slots ? keys_.size() * slots_per_row : 0);
    for (float& slot : slots) slot = std::abs(slot);  // sums of squares have roots
    TANDEM_CHECK_OK(store_.Assign(keys_, weights, slots));
    for (size_t i = 0; i < keys_.size(); ++i) {
      ModelStore::Row& row = model_.Create(keys_[i]);
      row.weights.assign(&weights[i * dim_], &weights[i * dim_] + dim_);
      if (!slots.empty()) {
        row.slots.assign(slots.data() + i * slots_per_row, slots.data() + (i + 1) * slots_per_row);
      }
      row = model_.Nearest(std::move(row));
    }
  }

  server::RowTable store_;
  ModelStore model_;
  Random random_;
  const size_t dim_;
  std::vector<uint64_t> keys_;
  int64_t stamp_ = 0;
};

// The store must agree with the model through thousands of random calls, for row lengths that do
// and do not fill cache lines, for each number of slots and for each type.
TEST(RowTableTest, AgreesWithAMapOfVectors) {
  const struct {
    int dim;
    Optimizer::Kind kind;
    bool catch_up = false;
    optim::RowTypes types = {};
  } kCases[] = {
      {16, Optimizer::ROWWISE_ADAGRAD},
      {1, Optimizer::SGD},
      {8, Optimizer::ADAGRAD},
      {10, Optimizer::ADAM},
      {64, Optimizer::ADAM},
      {12, Optimizer::ADAM, /*catch_up=*/true},
      {1024, Optimizer::MOMENTUM},
      {16, Optimizer::ROWWISE_ADAGRAD, false, {Table::BF16, Table::BF16}},
      {7, Optimizer::ROWWISE_ADAGRAD, false, {Table::F16, Table::F32}},
      {1, Optimizer::ADAGRAD, false, {Table::BF16, Table::F32}},
      {5, Optimizer::ADAM, false, {Table::F16, Table::BF16}},
      {64, Optimizer::ADAGRAD, false, {Table::F32, Table::BF16}},
      {12, Optimizer::ADAM, /*catch_up=*/true, {Table::BF16, Table::BF16}},
      {1025, Optimizer::MOMENTUM, false, {Table::BF16, Table::BF16}},
      {16, Optimizer::ROWWISE_ADAGRAD, false, {Table::INT8, Table::F32}},
      {7, Optimizer::ADAM, false, {Table::INT8, Table::BF16}},
      {1025, Optimizer::MOMENTUM, false, {Table::INT8, Table::BF16}},
      {1, Optimizer::SGD, false, {Table::INT8, Table::F32, Table::F32, 3}},
      {16, Optimizer::ADAGRAD, false, {Table::INT8, Table::F32, Table::F32, 10}},
      {6, Optimizer::ADAGRAD, false, {Table::INT8, Table::BF16, Table::F16, 20}},
      {64, Optimizer::ADAM, false, {Table::BF16, Table::F32, Table::F32, 1}},
      {12, Optimizer::ADAM, /*catch_up=*/true, {Table::INT8, Table::F32, Table::BF16, 9}}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::StrCat("dim ", c.dim, " kind ", c.kind, "; rerun with --seed=", TestSeed()));
    const auto optimizer = MakeOptimizer(c.kind, c.catch_up);
    server::RowTable::Options options = MakeOptions(optimizer.get(), c.dim);
    options.types = c.types;
    ModelRun run(options, TestSeed() + static_cast<uint64_t>(c.dim));
    const int steps = c.dim > 100 ? 200 : 1500;
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) run.Step();
    if (::testing::Test::HasFatalFailure()) return;
    run.CompareAll();
  }
}

// Rows keep number and contents while the index is rebuilt and the pages move dozens of times, the
// change from small to huge pages included.
TEST(RowTableTest, GrowsWithoutLosingARow) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(MakeOptions(optimizer.get(), 16));
  constexpr uint32_t kRows = 300'000;
  std::vector<uint64_t> keys(1000);
  std::vector<uint32_t> numbers(1000);
  for (uint32_t first = 0; first < kRows; first += 1000) {
    for (uint32_t i = 0; i < 1000; ++i) keys[i] = HashCombine(TestSeed(), first + i);
    TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
    for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(numbers[i], first + i);
  }
  ASSERT_EQ(store.size(), kRows);
  std::vector<float> out(16), want(16);
  for (uint32_t row = 0; row < kRows; ++row) {
    const uint64_t key = HashCombine(TestSeed(), row);
    optim::InitRow(Initializer(), 0x5eed, key, absl::MakeSpan(want));
    store.Pull({&key, 1}, absl::MakeSpan(out));
    ASSERT_EQ(out, want) << row;
    ASSERT_EQ(store.Weights(row), absl::MakeConstSpan(want)) << row;
    ASSERT_EQ(store.Slots(row)[0], 0.125f) << row;
  }
}

// One range sees only keys whose positions share their top bits; buckets must still be even, which
// shows in the memory and in the time of this test.
TEST(RowTableTest, KeysOfANarrowRangeSpreadOverTheWholeIndex) {
  server::PageArena arena;
  server::RowIndex index(7, 0, &arena);
  uint32_t rows = 0;
  for (uint64_t key = 0; rows < 20'000; ++key) {
    if (Position(7, key) >> 56 == 0x42) TANDEM_CHECK_OK(index.Insert(key, rows++));
  }
  uint32_t away = 0;
  index.ForEach([&](uint64_t key, uint32_t row) {
    ASSERT_EQ(index.Find(key, index.Hash(key)), row);
    if (index.FindAtHome(key, index.HomeOf(index.Hash(key))) != row) ++away;
  });
  EXPECT_LT(away, rows / 6) << "keys outside their home bucket";
}

// Eight keys with one and the same home: all in a row of buckets, the last of which ends the
// search.
TEST(RowTableTest, OverflowingBucketsAreSearchedToTheEnd) {
  server::PageArena arena;
  server::RowIndex index(3, 0, &arena);
  std::vector<uint64_t> same;
  constexpr uint64_t kHome = 0;  // hashes below 2^64 / 64 fall into the first of 64 buckets
  for (uint64_t key = 0; same.size() < 12; ++key) {
    if (MulHigh(index.Hash(key), 64) == kHome) same.push_back(key);
  }
  for (uint32_t i = 0; i < 11; ++i) TANDEM_CHECK_OK(index.Insert(same[i], i));
  for (uint32_t i = 0; i < 11; ++i) EXPECT_EQ(index.Find(same[i], index.Hash(same[i])), i);
  EXPECT_EQ(index.Find(same[11], index.Hash(same[11])), server::RowIndex::kNoRow);
}

TEST(RowTableTest, RepeatedKeysOfOneBatchMakeOneRow) {
  const auto optimizer = MakeOptimizer(Optimizer::SGD);
  server::RowTable store(MakeOptions(optimizer.get(), 4));
  const std::vector<uint64_t> keys(200, 42);
  std::vector<uint32_t> numbers(keys.size(), 9);
  TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
  EXPECT_EQ(store.size(), 1);
  EXPECT_THAT(numbers, ::testing::Each(0u));
}

// The bits of a row depend on its updates, not on who has read it before.
TEST(RowTableTest, AnAbsentRowIsCreatedByItsFirstUpdate) {
  const auto optimizer = MakeOptimizer(Optimizer::ADAGRAD);
  server::RowTable read(MakeOptions(optimizer.get(), 16)), unread(read.options());
  std::vector<uint64_t> keys(100);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(i);
  std::vector<float> first(keys.size() * 16), out(first.size()), want(first.size());
  read.Pull(keys, absl::MakeSpan(first));
  EXPECT_EQ(read.size(), 0);
  const std::vector<float> gradients(first.size(), 0.25f);
  for (server::RowTable* const store : {&read, &unread}) {
    TANDEM_CHECK_OK(store->Push(keys, gradients, 1, {.number = 1}));
    EXPECT_EQ(store->size(), 100);
  }
  read.Pull(keys, absl::MakeSpan(out));
  unread.Pull(keys, absl::MakeSpan(want));
  EXPECT_EQ(out, want);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_LT(out[i], first[i]) << i;
}

TEST(RowTableTest, AnEmptyStoreAnswers) {
  const auto optimizer = MakeOptimizer(Optimizer::ADAM);
  server::RowTable store(MakeOptions(optimizer.get(), 16));
  store.Pull({}, {});
  TANDEM_CHECK_OK(store.Push({}, {}, 1, {.number = 1}));
  store.ApplyToRows({}, {}, {}, 1, {.number = 1});
  EXPECT_EQ(store.size(), 0);
  EXPECT_TRUE(SortedKeys(store).empty());
  std::vector<float> out(16), want(16);
  const uint64_t key = 3;
  store.Pull({&key, 1}, absl::MakeSpan(out));
  optim::InitRow(Initializer(), 0x5eed, key, absl::MakeSpan(want));
  EXPECT_EQ(out, want);
  EXPECT_EQ(store.size(), 0);
}

// Bytes of [begin, end) that are in memory, asked of the system.
size_t ResidentAround(const void* at) {
  const auto page = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{4095};
  unsigned char present = 0;
  return mincore(reinterpret_cast<void*>(page), 4096, &present) == 0 && (present & 1) ? 4096 : 0;
}

// The promise of 1.3 times weights + slots + keys, at a million rows and at sizes around it where
// the index has just grown.
TEST(RowTableTest, MemoryStaysNearTheDataAtAMillionRows) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(MakeOptions(optimizer.get(), 16));
  std::vector<uint64_t> keys(10'000);
  std::vector<uint32_t> numbers(keys.size());
  for (uint64_t first = 0; first < 1'200'000; first += keys.size()) {
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = first + i;
    TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
    if (store.size() < 500'000) continue;
    const size_t data = static_cast<size_t>(store.size()) * (64 + 4 + 8);
    ASSERT_LT(store.Memory().bytes(), data * 13 / 10) << store.size();
    ASSERT_GT(store.Memory().bytes(), data) << "it cannot be less than what it holds";
  }
  EXPECT_GT(ResidentAround(store.Weights(0).data()), 0u);
}

// Hundreds of ranges live in one process; a small one must cost kilobytes, expected rows or not.
TEST(RowTableTest, ASmallRangeIsSmall) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable::Options options = MakeOptions(optimizer.get(), 16);
  server::RowTable store(options);
  std::vector<uint64_t> keys(100);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<uint32_t> numbers(keys.size());
  TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
  EXPECT_LT(store.Memory().bytes(), size_t{20} << 10);
  options.expected_rows = int64_t{1} << 60;  // a wrong hint, from a job file
  const server::RowTable hinted(options);
  EXPECT_LT(hinted.Memory().bytes(), size_t{2} << 20);
}

// A row without memory is an error of the call. What was there before is untouched, and the store
// serves it.
TEST(RowTableTest, WithoutMemoryForARowTheCallFails) {
  const auto optimizer = MakeOptimizer(Optimizer::ADAGRAD);
  server::MemoryBudget budget(size_t{100} << 10);
  server::PageArena arena(&budget);
  server::RowTable::Options options = MakeOptions(optimizer.get(), 16);
  options.arena = &arena;
  server::RowTable store(options);
  std::vector<uint64_t> keys(100);
  std::vector<float> gradients(keys.size() * 16, 0.25f), out(gradients.size()), was(16);
  const uint64_t known = Mix64(0);
  absl::Status status;
  int64_t rows = 0;
  for (uint64_t first = 0; status.ok(); first += keys.size()) {
    ASSERT_LT(first, 2000u);
    rows = store.size();
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(first + i);
    status = store.Push(keys, gradients, 1, {.number = 1});
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_GE(rows, 200);
  EXPECT_LT(store.size(), rows + 100);
  EXPECT_LE(arena.resident(), size_t{100} << 10);
  // Calls without new rows succeed, and those with new rows fail again.
  store.Pull({&known, 1}, absl::MakeSpan(was));
  TANDEM_CHECK_OK(
      store.Push({&known, 1}, absl::MakeConstSpan(gradients).first(16), 1, {.number = 1}));
  store.Pull({&known, 1}, absl::MakeSpan(out).first(16));
  EXPECT_LT(out[0], was[0]);
  const int64_t size = store.size();
  std::vector<uint32_t> numbers(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(100'000 + i);
  EXPECT_TRUE(absl::IsResourceExhausted(store.FindOrCreate(keys, absl::MakeSpan(numbers))));
  EXPECT_TRUE(absl::IsResourceExhausted(store.Assign(keys, gradients, {})));
  uint32_t number = 0;
  while (store.Add(keys[0], &number).ok()) keys.erase(keys.begin());  // the last page's rest
  EXPECT_LE(store.size(), size + 15);
  EXPECT_EQ(SortedKeys(store).size(), static_cast<size_t>(store.size()));
}

// One update makes a row hot, unless the store may not grow. A hot row that leaves makes room.
TEST(RowTableTest, ARowThatMayNotBecomeHotTriesAgain) {
  const auto optimizer = MakeOptimizer(Optimizer::SGD);
  server::RowTable::Options options = MakeOptions(optimizer.get(), 4);
  options.types = {Table::INT8, Table::F32, Table::F32, 2};
  options.limits.at_budget = true;
  bool may_grow = true;
  options.may_grow = [&may_grow](size_t) { return may_grow; };
  server::RowTable store(options);
  const std::vector<uint64_t> keys = {1, 2, 3};
  int64_t stamp = 0;
  const auto update = [&](absl::Span<const uint64_t> of) {
    const std::vector<float> gradients(of.size() * 4, 0.01f);
    TANDEM_CHECK_OK(store.Push(of, gradients, 1, {.number = 1, .stamp = ++stamp}));
  };
  update(keys);
  EXPECT_EQ(store.hot_rows(), 0);
  may_grow = false;
  update(keys);
  EXPECT_EQ(store.hot_rows(), 0);
  EXPECT_TRUE(store.unstorable().ok());
  may_grow = true;
  update(absl::MakeConstSpan(keys).first(2));
  EXPECT_EQ(store.hot_rows(), 2);
  may_grow = false;
  // A new row takes the place of one that is hot, and becomes hot itself.
  store.Advance(1);
  const std::vector<uint64_t> others = {4};
  update(absl::MakeConstSpan(keys).subspan(1));
  update(others);
  update(others);
  EXPECT_EQ(store.size(), 3);
  EXPECT_EQ(store.hot_rows(), 2);
  std::vector<float> out(4);
  store.Pull(others, absl::MakeSpan(out));
  std::vector<float> want(4);
  optim::InitRow(options.initializer, options.seed, 4, absl::MakeSpan(want));
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(out[j], want[j] - 0.001, 0.02);
}

// Without limits a row that cannot become hot is an error.
TEST(RowTableTest, WithoutMemoryForAHotRowTheStoreSaysSo) {
  const auto optimizer = MakeOptimizer(Optimizer::SGD);
  server::MemoryBudget budget(size_t{100} << 10);
  server::PageArena arena(&budget);
  server::RowTable::Options options = MakeOptions(optimizer.get(), 16);
  options.arena = &arena;
  options.types = {Table::INT8, Table::F32, Table::F32, 2};
  server::RowTable store(options);
  const std::vector<float> gradient(16, 0.25f);
  uint64_t rows = 0;
  while (store.Push({&rows, 1}, gradient, 1, {.number = 1, .stamp = 1}).ok()) {
    ASSERT_LT(++rows, 9999u);
  }
  ASSERT_TRUE(store.unstorable().ok());
  std::vector<float> was(16), out(16);
  uint64_t key = 0;
  for (; key < rows && store.unstorable().ok(); ++key) {
    store.Pull({&key, 1}, absl::MakeSpan(was));
    TANDEM_CHECK_OK(store.Push({&key, 1}, gradient, 1, {.number = 1, .stamp = 2}));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(store.unstorable())) << store.unstorable();
  EXPECT_EQ(store.hot_rows(), static_cast<int64_t>(--key));
  store.Pull({&key, 1}, absl::MakeSpan(out));
  EXPECT_LT(out[0], was[0]) << "the update has changed the row";
}

// Most rows are erased: the memory of the others is given back, and the rest is as it was.
TEST(RowTableTest, AnEmptiedRangeGivesMemoryBack) {
  const auto optimizer = MakeOptimizer(Optimizer::ADAGRAD);
  server::PageArena arena;
  server::RowTable::Options options = MakeOptions(optimizer.get(), 16);
  options.arena = &arena;
  server::RowTable store(options);
  constexpr uint64_t kRows = 100'000, kKept = 97;  // one row of 97 stays
  const auto row_of = [](uint64_t key) { return static_cast<float>(key); };
  for (uint64_t key = 0; key < kRows; ++key) {
    TANDEM_CHECK_OK(store.Assign({&key, 1}, std::vector<float>(16, row_of(key)), {}));
  }
  const size_t full = arena.resident();
  for (uint64_t key = 0; key < kRows; ++key) {
    if (key % kKept == 0) continue;
    ASSERT_TRUE(store.Erase(key));
  }
  EXPECT_EQ(store.size(), static_cast<int64_t>((kRows + kKept - 1) / kKept));
  EXPECT_LT(arena.resident(), full / 20);
  std::vector<float> out(16), initial(16);
  for (uint64_t key = 0; key < kRows; ++key) {
    store.Pull({&key, 1}, absl::MakeSpan(out));
    if (key % kKept == 0) {
      ASSERT_THAT(out, ::testing::Each(row_of(key)));
    } else {
      optim::InitRow(options.initializer, options.seed, key, absl::MakeSpan(initial));
      ASSERT_EQ(out, initial) << key;
    }
  }
  // The numbers are those of the rows that remain, and new rows get the next ones.
  std::vector<uint64_t> keys;
  std::vector<uint32_t> numbers;
  store.Scan(0, kRows, &keys, &numbers);
  std::sort(numbers.begin(), numbers.end());
  EXPECT_TRUE(std::adjacent_find(numbers.begin(), numbers.end()) == numbers.end());
  for (uint64_t key = kRows; key < kRows + 5000; ++key) {
    uint32_t number = 0;
    TANDEM_CHECK_OK(store.Add(key, &number));
    ASSERT_THAT(store.Weights(number), ::testing::SizeIs(16));
  }
  for (uint64_t key = 0; key < kRows + 5000; ++key) store.Erase(key);
  EXPECT_EQ(store.size(), 0);
  EXPECT_LT(arena.resident(), size_t{200} << 10);
}

// The same with hot rows, of which only their own type has the values.
TEST(RowTableTest, AnEmptiedRangeKeepsItsHotRows) {
  const auto optimizer = MakeOptimizer(Optimizer::SGD);
  server::PageArena arena;
  server::RowTable::Options options = MakeOptions(optimizer.get(), 16);
  options.arena = &arena;
  options.types = {Table::INT8, Table::F32, Table::F32, 1};
  server::RowTable store(options);
  constexpr uint64_t kRows = 20'000, kKept = 97;
  const auto row_of = [](uint64_t key) {
    std::vector<float> row(16, static_cast<float>(key));
    row[0] = 1;  // a range that INT8 lacks
    return row;
  };
  const auto add_all = [&] {
    for (uint64_t key = 0; key < kRows; ++key) {
      if (key % 2 == 0) {
        TANDEM_CHECK_OK(store.Push({&key, 1}, std::vector<float>(16), 1, {.number = 1}));
      }
      TANDEM_CHECK_OK(store.Assign({&key, 1}, row_of(key), {}));
    }
    EXPECT_EQ(store.hot_rows(), static_cast<int64_t>(kRows / 2));
  };
  add_all();
  const size_t full = arena.resident();
  for (uint64_t key = 0; key < kRows; ++key) {
    if (key % kKept == 0) continue;
    ASSERT_TRUE(store.Erase(key));
  }
  EXPECT_LT(arena.resident(), full / 10);
  std::vector<float> out(16);
  int hot = 0;
  for (uint64_t key = 0; key < kRows; key += kKept) {
    store.Pull({&key, 1}, absl::MakeSpan(out));
    ASSERT_NEAR(out[1], row_of(key)[1], static_cast<float>(key) / 100) << key;
    if (key % 2 != 0) continue;
    ++hot;
    ASSERT_EQ(out, row_of(key)) << key;
  }
  EXPECT_EQ(store.hot_rows(), hot);
  add_all();
  for (uint64_t key = 0; key < kRows; key += 2) {
    store.Pull({&key, 1}, absl::MakeSpan(out));
    ASSERT_EQ(out, row_of(key)) << key;
  }
}

// Pulls and pushes of rows that exist call operator new not once, nor do pulls of absent rows.
TEST(RowTableTest, SteadyStateAllocatesNothing) {
  const auto optimizer = MakeOptimizer(Optimizer::ADAM);
  server::RowTable store(MakeOptions(optimizer.get(), 16));
  std::vector<uint64_t> keys(5000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = Mix64(i);
  std::vector<float> values(keys.size() * 16);
  std::vector<uint32_t> numbers(keys.size());
  int64_t before = allocations.load();
  store.Pull(keys, absl::MakeSpan(values));
  EXPECT_EQ(allocations.load(), before);
  TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
  before = allocations.load();
  for (int i = 0; i < 10; ++i) {
    store.Pull(keys, absl::MakeSpan(values));
    store.Find(keys, absl::MakeSpan(numbers));
    TANDEM_CHECK_OK(store.Push(keys, values, 0.5f, {.number = 1}));
    TANDEM_CHECK_OK(store.FindOrCreate(keys, absl::MakeSpan(numbers)));
    store.ApplyToRows(keys, numbers, values, 0.5f, {.number = 1});
    TANDEM_CHECK_OK(store.Assign(keys, values, {}));
  }
  EXPECT_EQ(allocations.load(), before);
  EXPECT_GT(before, 0) << "the counter counts";
}

// Rows are numbered through slabs by a multiplication in place of a division; it must be exact up
// to the last row number.
TEST(RowSlabsTest, RowsDoNotOverlapAndLieWhereDivisionSays) {
  for (const auto& [weight_bytes, slot_bytes] : {std::pair{64, 4},
                                                 {4, 0},
                                                 {40, 84},
                                                 {256, 516},
                                                 {4096, 8196},
                                                 {17, 4},
                                                 {6, 8},
                                                 {4, 20},
                                                 {1026, 4},
                                                 {2049, 2}}) {
    server::PageArena arena;
    server::RowSlabs slabs(static_cast<size_t>(weight_bytes), static_cast<size_t>(slot_bytes),
                           &arena);
    TANDEM_CHECK_OK(slabs.Reserve(5000));
    std::vector<std::pair<const char*, const char*>> parts;
    for (uint32_t row = 0; row < 5000; ++row) {
      const auto* const weights = static_cast<const char*>(slabs.Weights(row));
      const auto* const of_slots = static_cast<const char*>(slabs.Slots(row));
      parts.emplace_back(weights, weights + weight_bytes);
      parts.emplace_back(of_slots, of_slots + slot_bytes);
      if (slot_bytes % 4 != 0) continue;
      ASSERT_EQ(reinterpret_cast<uintptr_t>(of_slots) % 4, 0u) << weight_bytes << " " << row;
    }
    std::sort(parts.begin(), parts.end());
    for (size_t i = 1; i < parts.size(); ++i) ASSERT_LE(parts[i - 1].second, parts[i].first);
  }
}

TEST(RowSlabsTest, WeightsOfWholeLinesStartOnALine) {
  for (const int dim : {16, 32, 64}) {
    server::PageArena arena;
    server::RowSlabs slabs(dim * sizeof(float), sizeof(float), &arena);
    TANDEM_CHECK_OK(slabs.Reserve(1000));
    for (uint32_t row = 0; row < 1000; ++row) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(slabs.Weights(row)) % 64, 0u) << dim << " " << row;
    }
  }
}

}  // namespace
}  // namespace tandem
