// Rows that programs write: removal from the index and the slabs against a map over random
// operations, scans under change, and writes that count once.
#include "server/rows/row_writes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "server/rows/row_index.h"
#include "server/rows/row_table.h"
#include "tests/test_seed.h"
#include "tests/unit/server/sorted_keys.h"

namespace tandem {
namespace {

constexpr int kDim = 3, kState = 2;
constexpr size_t kWidth = kDim + kState;
using Row = std::vector<float>;

std::unique_ptr<optim::RowOptimizer> ProgramsOwn() {
  Optimizer config;
  config.set_kind(Optimizer::PROGRAM);
  return *optim::NewRowOptimizer(config, kState);
}

server::RowTable::Options StoreOptions(const optim::RowOptimizer* optimizer) {
  server::RowTable::Options options;
  options.dim = kDim;
  options.salt = 0x5a17;
  options.optimizer = optimizer;
  options.initializer.set_kind(Initializer::ZERO);
  return options;
}

// Small and large keys that come again and again, so that buckets overflow and empty.
uint64_t SomeKey(Random* random) {
  const uint64_t n = random->Uniform(4000);
  return n % 2 == 0 ? n : Mix64(n);
}

TEST(RowIndexTest, RemovesAsAMapDoes) {
  Random random(TestSeed());
  for (int round = 0; round < 20; ++round) {
    server::PageArena arena;
    server::RowIndex index(Mix64(round), 0, &arena);
    std::map<uint64_t, uint32_t> model;
    uint32_t next = 0;
    for (int step = 0; step < 20000; ++step) {
      const uint64_t key = SomeKey(&random);
      const auto known = model.find(key);
      // Growing, then shrinking: full buckets and long ways are met on both.
      if (random.Uniform(100) < (step / 4000 % 2 == 0 ? 70u : 30u)) {
        if (known == model.end()) {
          TANDEM_CHECK_OK(index.Insert(key, next));
          model[key] = next++;
        }
      } else {
        const uint32_t row = index.Remove(key, index.Hash(key));
        ASSERT_EQ(row, known == model.end() ? server::RowIndex::kNoRow : known->second);
        if (known != model.end()) model.erase(known);
      }
      ASSERT_EQ(index.size(), static_cast<int64_t>(model.size()));
      const uint64_t other = SomeKey(&random);
      const auto found = model.find(other);
      ASSERT_EQ(index.Find(other, index.Hash(other)),
                found == model.end() ? server::RowIndex::kNoRow : found->second);
    }
    std::map<uint64_t, uint32_t> all;
    index.ForEach([&](uint64_t key, uint32_t row) { EXPECT_TRUE(all.emplace(key, row).second); });
    ASSERT_EQ(all, model);
  }
}

// Rows that are there all the time come exactly once, others at most once, while rows come and go
// and the index grows.
TEST(RowIndexTest, AScanSeesWhatIsThereAllTheTimeOnce) {
  Random random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    server::PageArena arena;
    server::RowIndex index(Mix64(round), 0, &arena);
    std::set<uint64_t> stays, there;
    for (size_t i = random.Uniform(3000); i > 0; --i) there.insert(SomeKey(&random));
    for (const uint64_t key : there) {
      TANDEM_CHECK_OK(index.Insert(key, static_cast<uint32_t>(key)));
      if (random.Bernoulli(0.5)) stays.insert(key);
    }
    std::map<uint64_t, int> seen;
    uint64_t cursor = 0;
    do {
      cursor = index.Scan(cursor, 1 + random.Uniform(200), [&](uint64_t key, uint32_t row) {
        EXPECT_EQ(row, static_cast<uint32_t>(key));
        EXPECT_EQ(there.count(key), 1u) << "it had been removed";
        ++seen[key];
      });
      for (size_t i = random.Uniform(100); i > 0; --i) {
        const uint64_t key = random.Bernoulli(0.5) ? SomeKey(&random) : Mix64(random.Uniform(1e6));
        if (stays.count(key) > 0) continue;
        if (there.insert(key).second) {
          TANDEM_CHECK_OK(index.Insert(key, static_cast<uint32_t>(key)));
        } else {
          index.Remove(key, index.Hash(key));
          there.erase(key);
        }
      }
    } while (cursor != 0);
    for (const auto& [key, times] : seen) EXPECT_EQ(times, 1) << key;
    for (const uint64_t key : stays) ASSERT_EQ(seen.count(key), 1u) << key;
  }
}

// A range's rows, and what they ought to be.
class Rows {
 public:
  explicit Rows(Random* random) : random_(random) {}

  server::RowTable& store() { return store_; }
  std::map<uint64_t, Row>& model() { return model_; }

  void Write(server::RowWrites* writes, uint64_t writer, int64_t number) {
    Make();
    const std::vector<uint64_t> want = Expect();
    changed_.clear();
    TANDEM_CHECK_OK(writes->Apply(writer, number, action_, keys_, values_, &store_, &changed_));
    ASSERT_EQ(changed_, want);
  }
  // The same once more changes nothing, and is answered as before.
  void WriteAgain(server::RowWrites* writes, uint64_t writer, int64_t number) {
    std::vector<uint64_t> again;
    TANDEM_CHECK_OK(writes->Apply(writer, number, action_, keys_, values_, &store_, &again));
    ASSERT_EQ(again, changed_);
  }
  void Compare() {
    ASSERT_EQ(store_.size(), static_cast<int64_t>(model_.size()));
    std::vector<uint64_t> keys;
    for (const auto& [key, row] : model_) keys.push_back(key);
    for (int i = 0; i < 100; ++i) keys.push_back(SomeKey(random_));
    std::vector<uint32_t> numbers(keys.size());
    store_.Find(keys, absl::MakeSpan(numbers));
    std::set<uint32_t> distinct;
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto want = model_.find(keys[i]);
      ASSERT_EQ(numbers[i] != server::RowIndex::kNoRow, want != model_.end());
      if (want == model_.end()) continue;
      if (i < model_.size()) {
        EXPECT_TRUE(distinct.insert(numbers[i]).second);
      }
      Row row(kWidth);
      store_.CopyRow(numbers[i], row.data());
      ASSERT_EQ(row, want->second);
    }
    std::vector<uint64_t> sorted = SortedKeys(store_);
    std::sort(sorted.begin(), sorted.end());
    keys.resize(model_.size());
    ASSERT_EQ(sorted, keys);
  }

 private:
  void Make() {
    action_ = static_cast<StoreAction>(3 + random_->Uniform(3));
    keys_.resize(random_->Uniform(40));
    for (uint64_t& key : keys_) key = SomeKey(random_);
    if (keys_.size() > 1 && random_->Bernoulli(0.3)) keys_.back() = keys_.front();
    values_.assign(HasStoreValues(action_) ? keys_.size() * kWidth : 0, 0);
    for (float& value : values_) value = static_cast<float>(random_->Normal());
  }
  // Does it to the model; which keys change.
  std::vector<uint64_t> Expect() {
    std::vector<uint64_t> changed;
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (action_ == StoreAction::kErase) {
        if (model_.erase(keys_[i]) > 0) changed.push_back(keys_[i]);
        continue;
      }
      const Row row(values_.data() + i * kWidth, values_.data() + (i + 1) * kWidth);
      if (action_ == StoreAction::kAssign) {
        model_[keys_[i]] = row;
      } else if (model_.emplace(keys_[i], row).second) {
        changed.push_back(keys_[i]);
      }
    }
    return changed;
  }

  Random* const random_;
  const std::unique_ptr<optim::RowOptimizer> optimizer_ = ProgramsOwn();
  server::RowTable store_{StoreOptions(optimizer_.get())};
  std::map<uint64_t, Row> model_;
  StoreAction action_ = StoreAction::kAssign;
  std::vector<uint64_t> keys_, changed_;
  std::vector<float> values_;
};

TEST(RowWritesTest, AgreesWithAMap) {
  Random random(TestSeed());
  for (int round = 0; round < 10; ++round) {
    Rows rows(&random);
    server::RowWrites writes;
    int64_t numbers[8] = {};
    for (int step = 0; step < 2000; ++step) {
      const uint64_t writer = random.Uniform(8);
      numbers[writer] += 1 + static_cast<int64_t>(random.Uniform(2));  // one may have been given up
      ASSERT_NO_FATAL_FAILURE(rows.Write(&writes, writer + 1, numbers[writer]));
      if (random.Bernoulli(0.3)) {
        ASSERT_NO_FATAL_FAILURE(rows.WriteAgain(&writes, writer + 1, numbers[writer]));
      }
      if (step % 200 == 0) {  // as when its range moves
        std::string bytes;
        writes.Encode(&bytes);
        server::RowWrites moved;
        ASSERT_TRUE(moved.Decode(bytes).ok());
        writes = moved;
      }
    }
    ASSERT_NO_FATAL_FAILURE(rows.Compare());
  }
}

TEST(RowWritesTest, RoomOfErasedRowsIsUsedAgain) {
  Random random(TestSeed());
  const auto optimizer = ProgramsOwn();
  server::RowTable store(StoreOptions(optimizer.get()));
  server::RowWrites writes;
  std::vector<uint64_t> keys(4000), changed;
  std::vector<float> values(keys.size() * kWidth, 1);
  size_t bytes = 0;
  for (int64_t round = 0; round < 20; ++round) {
    for (uint64_t& key : keys) key = Mix64(random.Uniform(1u << 30));
    TANDEM_CHECK_OK(
        writes.Apply(1, 2 * round + 1, StoreAction::kAssign, keys, values, &store, &changed));
    if (round == 1) bytes = store.Memory().bytes();
    TANDEM_CHECK_OK(
        writes.Apply(1, 2 * round + 2, StoreAction::kErase, keys, {}, &store, &changed));
    EXPECT_EQ(store.size(), 0);
  }
  EXPECT_LE(store.Memory().bytes(), bytes + (size_t{16} << 10));
}

// The copy of a write that comes late: after a later one of its writer, or of another one.
TEST(RowWritesTest, LateCopiesChangeNothing) {
  const auto optimizer = ProgramsOwn();
  server::RowTable store(StoreOptions(optimizer.get()));
  server::RowWrites writes;
  const uint64_t key = 5;
  const auto assign = [&](uint64_t writer, int64_t number, float value) {
    const Row row(kWidth, value);
    std::vector<uint64_t> changed;
    TANDEM_CHECK_OK(
        writes.Apply(writer, number, StoreAction::kAssign, {&key, 1}, row, &store, &changed));
    Row now(kWidth);
    uint32_t at = 0;
    store.Find({&key, 1}, {&at, 1});
    store.CopyRow(at, now.data());
    return now[0];
  };
  EXPECT_EQ(assign(1, 1, 10), 10);
  EXPECT_EQ(assign(2, 1, 20), 20);
  EXPECT_EQ(assign(1, 1, 10), 20) << "an old write over a newer one of another writer";
  EXPECT_EQ(assign(1, 3, 30), 30);
  EXPECT_EQ(assign(1, 2, 25), 30) << "given up, and late";
  EXPECT_EQ(writes.writes(), 3u);
}

TEST(RowWritesTest, ForgetsTheWriterThatIsSilentForLongest) {
  const auto optimizer = ProgramsOwn();
  server::RowTable store(StoreOptions(optimizer.get()));
  server::RowWrites writes;
  std::vector<uint64_t> changed;
  for (uint64_t writer = 1; writer <= 2 * server::RowWrites::kMaxWriters; ++writer) {
    TANDEM_CHECK_OK(writes.Apply(writer, 1, StoreAction::kErase, {}, {}, &store, &changed));
    TANDEM_CHECK_OK(writes.Apply(1, static_cast<int64_t>(writer) + 1, StoreAction::kErase, {}, {},
                                 &store, &changed));
  }
  EXPECT_EQ(writes.writers(), server::RowWrites::kMaxWriters);
  const uint64_t before = writes.writes();
  TANDEM_CHECK_OK(writes.Apply(1, 1, StoreAction::kErase, {}, {}, &store, &changed));
  EXPECT_EQ(writes.writes(), before) << "writer 1 has written all the time and is remembered";
}

TEST(RowWritesTest, RefusesBytesThatAreNotItsOwn) {
  const auto optimizer = ProgramsOwn();
  server::RowTable store(StoreOptions(optimizer.get()));
  server::RowWrites writes;
  std::vector<uint64_t> changed;
  const std::vector<uint64_t> keys(20, 3);
  const std::vector<float> values(keys.size() * kWidth);
  TANDEM_CHECK_OK(writes.Apply(9, 4, StoreAction::kInsert, keys, values, &store, &changed));
  std::string bytes;
  writes.Encode(&bytes);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const bool whole = length == sizeof(uint64_t);  // no writers
    EXPECT_EQ(server::RowWrites().Decode(absl::string_view(bytes).substr(0, length)).ok(), whole);
  }
  EXPECT_TRUE(server::RowWrites().Decode(bytes).ok());
  EXPECT_FALSE(server::RowWrites().Decode(bytes + bytes.substr(sizeof(uint64_t))).ok());
}

}  // namespace
}  // namespace tandem
