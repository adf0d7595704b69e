// Batches against the simplest thing that could work: unique keys, pooling and merging by std::map
// and plain loops, bit for bit.
#include "data/batch.h"

#include <map>

#include "base/random.h"
#include "data/batch_builder.h"
#include "data/pooling.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rows_in.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(KeyIndexTest, AgreesWithStdMap) {
  Random random(TestSeed());
  data::KeyIndex index;
  for (int round = 0; round < 50; ++round) {
    // From a handful of keys to more distinct ones than the table starts with.
    const uint64_t distinct = uint64_t{1} << random.Uniform(16);
    const bool small_keys = random.Bernoulli(0.5);
    std::vector<uint64_t> occurrences(random.Uniform(30'000));
    for (uint64_t& key : occurrences) {
      key = random.Uniform(distinct);
      if (!small_keys) key = Mix64(key);
    }
    std::vector<uint64_t> keys = {99};
    std::vector<uint32_t> at = {99};
    index.Unique(occurrences, &keys, &at);
    std::map<uint64_t, uint32_t> model;
    ASSERT_EQ(at.size(), occurrences.size());
    for (size_t o = 0; o < occurrences.size(); ++o) {
      const auto [found, first] = model.try_emplace(occurrences[o], model.size());
      ASSERT_EQ(at[o], found->second) << "occurrence " << o << ", --seed=" << TestSeed();
      ASSERT_EQ(keys[at[o]], occurrences[o]);
    }
    ASSERT_EQ(keys.size(), model.size());
    // In place, and to a place before the occurrences.
    const size_t before = random.Uniform(3);
    std::vector<uint64_t> all(before, 0);
    all.insert(all.end(), occurrences.begin(), occurrences.end());
    std::vector<uint32_t> again(occurrences.size());
    const uint32_t count =
        index.Unique(absl::MakeConstSpan(all).subspan(before), all.data(), again.data());
    ASSERT_EQ(std::vector<uint64_t>(all.begin(), all.begin() + count), keys);
    ASSERT_EQ(again, at);
  }
}

data::Row MakeRow(float label, std::vector<float> numbers, std::vector<uint64_t> keys) {
  data::Row row;
  row.label = label;
  row.numbers = std::move(numbers);
  row.keys = std::move(keys);
  return row;
}

TEST(BatchBuilderTest, FieldsGoToTheirTables) {
  // Field 1 feeds both tables; table 3 reads fields 2 and 0 in this order.
  data::BatchBuilder builder(1, {{3, {2, 0}}, {5, {1}}});
  data::Batch batch;
  builder.Start(&batch);
  builder.Append(MakeRow(1, {0.5f}, {10, 20, 30}), &batch);
  builder.Append(MakeRow(0, {1.5f}, {30, 20, 10}), &batch);
  builder.Finish(&batch);
  EXPECT_EQ(batch.samples, 2);
  EXPECT_EQ(batch.numeric, 1);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0));
  EXPECT_THAT(batch.numbers, ElementsAre(0.5f, 1.5f));
  ASSERT_EQ(batch.sparse.size(), 2u);
  EXPECT_EQ(batch.sparse[0].table, 3u);
  EXPECT_EQ(batch.sparse[0].fields, 2);
  EXPECT_THAT(batch.sparse[0].keys, ElementsAre(30, 10));
  EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 1, 0));
  EXPECT_THAT(batch.sparse[0].offsets, IsEmpty());
  EXPECT_THAT(batch.sparse[0].weights, IsEmpty());
  EXPECT_EQ(batch.sparse[1].table, 5u);
  EXPECT_THAT(batch.sparse[1].keys, ElementsAre(20));
  EXPECT_THAT(batch.sparse[1].index, ElementsAre(0, 0));
}

TEST(BatchBuilderTest, ABagIsOneCellWithWeights) {
  data::BatchBuilder builder(0, {{0, {0}, /*bags=*/true, /*weighted=*/true}});
  data::Batch batch;
  for (int round = 0; round < 2; ++round) {  // the second time in the memory of the first
    builder.Start(&batch);
    data::Row row = MakeRow(1, {}, {7, 8, 7});
    row.weights = {1, 2, 3};
    row.offsets = {0, 3};
    builder.Append(row, &batch);
    row = MakeRow(0, {}, {});
    row.offsets = {0, 0};
    builder.Append(row, &batch);
    builder.Finish(&batch);
    EXPECT_THAT(batch.sparse[0].keys, ElementsAre(7, 8));
    EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 0));
    EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 3, 3));
    EXPECT_THAT(batch.sparse[0].weights, ElementsAre(1, 2, 3));
  }
}

// Table 0 has bags in one of its fields, table 1 has none.
TEST(BatchBuilderTest, FieldsOfOneKeyBesideBags) {
  data::BatchBuilder builder(
      0, {{0, {2, 0}, /*bags=*/true, /*weighted=*/true}, {1, {1}, /*bags=*/false}});
  data::Row row = MakeRow(1, {}, {5, 6, 7, 8});
  row.offsets = {0, 1, 2, 4};
  row.weights = {1, 1, 0.5f, 0.5f};
  data::Batch batch;
  builder.Start(&batch);
  builder.Append(row, &batch);
  row = MakeRow(0, {}, {7, 6, 5});
  row.offsets = {0, 1, 2, 3};
  row.weights = {1, 1, 1};
  builder.Append(row, &batch);
  builder.Finish(&batch);
  EXPECT_THAT(batch.sparse[0].keys, ElementsAre(7, 8, 5));
  EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 2, 2, 0));
  EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 3, 4, 5));
  EXPECT_THAT(batch.sparse[0].weights, ElementsAre(0.5f, 0.5f, 1, 1, 1));
  EXPECT_THAT(batch.sparse[1].keys, ElementsAre(6));
  EXPECT_THAT(batch.sparse[1].index, ElementsAre(0, 0));
  EXPECT_THAT(batch.sparse[1].offsets, IsEmpty());
  EXPECT_THAT(batch.sparse[1].weights, IsEmpty());
}

TEST(BatchTest, ClearKeepsTheMemory) {
  data::BatchBuilder builder(1, {{0, {0}}});
  data::Batch batch;
  builder.Start(&batch);
  builder.Append(MakeRow(1, {0.5f}, {10}), &batch);
  builder.Finish(&batch);
  const float* const numbers = batch.numbers.data();
  const uint64_t* const keys = batch.sparse[0].keys.data();
  batch.Clear();
  EXPECT_EQ(batch.samples, 0);
  EXPECT_THAT(batch.labels, IsEmpty());
  EXPECT_THAT(batch.sparse[0].keys, IsEmpty());
  builder.Start(&batch);
  builder.Append(MakeRow(1, {0.5f}, {10}), &batch);
  builder.Finish(&batch);
  EXPECT_EQ(batch.numbers.data(), numbers);
  EXPECT_EQ(batch.sparse[0].keys.data(), keys);
}

// A random input: cells of one occurrence or of zero to three, with or without weights.
struct PoolingCase {
  data::SparseInput input;
  std::vector<uint32_t> cell_of;  // per occurrence
  size_t cells = 0;
};

PoolingCase RandomCase(Random* random, bool bags, bool weighted) {
  PoolingCase made;
  made.cells = 1 + random->Uniform(40);
  std::vector<uint64_t> occurrences;
  if (bags) made.input.offsets.push_back(0);
  for (uint32_t c = 0; c < made.cells; ++c) {
    const uint64_t count = bags ? random->Uniform(4) : 1;
    for (uint64_t i = 0; i < count; ++i) {
      occurrences.push_back(random->Uniform(12));
      made.cell_of.push_back(c);
      if (weighted) made.input.weights.push_back(static_cast<float>(random->Normal()));
    }
    if (bags) made.input.offsets.push_back(static_cast<uint32_t>(occurrences.size()));
  }
  made.input.fields = 1;
  data::KeyIndex().Unique(occurrences, &made.input.keys, &made.input.index);
  return made;
}

std::vector<float> RandomFloats(Random* random, size_t count) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(random->Normal());
  return out;
}

// Products rounded before they are added, as the files that promise bits do. `volatile` keeps this
// test's own compiler from fusing them.
float Product(float a, float b) {
  volatile float product = a * b;
  return product;
}

TEST(PoolingTest, AgreesWithPlainLoopsBitForBit) {
  Random random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round << ", --seed=" << TestSeed());
    const bool bags = random.Bernoulli(0.5), weighted = random.Bernoulli(0.5);
    const PoolingCase test = RandomCase(&random, bags, weighted);
    const int dim = 1 + static_cast<int>(random.Uniform(40));
    const auto rows = RandomFloats(&random, test.input.keys.size() * dim);
    const auto pooled_gradients = RandomFloats(&random, test.cells * dim);
    std::vector<float> cells(test.cells * dim, 99), row_gradients(rows.size(), 99);
    const size_t keys = test.input.keys.size();
    data::PoolRows(test.input, dim, RowsIn(rows.data(), keys, dim), absl::MakeSpan(cells));
    data::MergeGradients(test.input, dim, pooled_gradients,
                         RowsIn(row_gradients.data(), keys, dim));

    // A map from place to sum, started by its first addend.
    std::map<size_t, float> want_pooled, want_rows;
    const auto add = [](std::map<size_t, float>* sums, size_t at, float x) {
      const auto [found, first] = sums->try_emplace(at, x);
      if (!first) found->second += x;
    };
    for (size_t o = 0; o < test.input.index.size(); ++o) {
      const float w = weighted ? test.input.weights[o] : 1.0f;
      for (int d = 0; d < dim; ++d) {
        const size_t row = size_t{test.input.index[o]} * dim + d;
        const size_t cell = size_t{test.cell_of[o]} * dim + d;
        add(&want_pooled, cell, Product(w, rows[row]));
        add(&want_rows, row, Product(w, pooled_gradients[cell]));
      }
    }
    for (size_t i = 0; i < cells.size(); ++i) {
      ASSERT_EQ(cells[i], want_pooled.count(i) > 0 ? want_pooled[i] : 0.0f) << i;
    }
    for (size_t i = 0; i < row_gradients.size(); ++i)
      ASSERT_EQ(row_gradients[i], want_rows[i]) << i;
  }
}

}  // namespace
}  // namespace tandem
