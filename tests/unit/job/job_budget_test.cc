// The budget of what policies hold, against what readers and models really make: of every format
// and every model, a job whose batches are as large as they can be.
#include "job/job_budget.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "data/batch_source.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

constexpr int kBatch = 7, kRows = 20;

job::ResolvedJob PlanOf(const std::string& data, const std::string& tables,
                        const std::string& model,
                        const std::string& more = "cluster { workers: 1 servers: 1 }") {
  const absl::StatusOr<Job> job = job::ParseJob(
      absl::StrCat("name: \"b\" data { ", data, " } ", tables, " model { ", model,
                   " } train { batch_size: ", kBatch,
                   " max_inflight_pushes: 1 } dense { synchroniser: SERVERS optimizer { "
                   "learning_rate: 1 } } ",
                   more),
      "b", {});
  EXPECT_TRUE(job.ok()) << job.status();
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

std::string TableOf(const std::string& name, int dim, const std::string& fields = "") {
  return absl::StrCat("table { name: \"", name, "\" dim: ", dim, " ", fields, " } ");
}

// Different ids in every row and field.
std::string Criteo(const TempDir& dir) {
  std::string text;
  for (int row = 0; row < kRows; ++row) {
    absl::StrAppend(&text, row % 2);
    for (int i = 0; i < 13; ++i) absl::StrAppend(&text, "\t", i);
    for (int i = 0; i < 26; ++i) absl::StrAppend(&text, "\t", 100 * row + i);
    text += "\n";
  }
  return absl::StrCat("format: CRITEO train: \"", dir.Write("criteo.tsv", text), "\"");
}
std::string Libsvm(const TempDir& dir) {
  std::string text;
  for (int row = 0; row < kRows; ++row) {
    absl::StrAppend(&text, row % 2);
    for (int i = 0; i < 5; ++i) absl::StrAppend(&text, " ", 100 * row + i, ":1");
    text += "\n";
  }
  return absl::StrCat("format: LIBSVM max_ids: 5 train: \"", dir.Write("a.svm", text), "\"");
}
std::string Delimited(const TempDir& dir) {
  std::string text;
  for (int row = 0; row < kRows; ++row)
    absl::StrAppend(&text, "1,2,3,a", row, ",b", row, "|c", row, "\n");
  return absl::StrCat("format: DELIMITED train: \"", dir.Write("a.csv", text),
                      "\" columns { delimiter: \",\" label: \"0\" numeric: \"1\" numeric: \"2\" ",
                      "categorical: \"3\" categorical: \"4\" column { name: \"4\" separator: "
                      "\"|\" max_ids: 2 } }");
}
std::string Ncf(const TempDir& dir) {
  std::string text, test, candidates;
  for (int row = 0; row < kRows; ++row) {
    absl::StrAppend(&text, row, "\t", row, "\t5\n");
    absl::StrAppend(&test, row, "\t", (row + 1) % kRows, "\t5\n");
    absl::StrAppend(&candidates, "(", row, ",", (row + 1) % kRows, ")\t", (row + 2) % kRows, "\n");
  }
  return absl::StrCat("format: NCF train: \"", dir.Write("a.rating", text), "\" test: \"",
                      dir.Write("test.rating", test), "\" negatives { per_positive: 1 ",
                      "test_negatives: \"", dir.Write("test.negative", candidates), "\" }");
}

// The largest push of the epoch: distinct keys of a batch, for each table of the plan.
std::vector<int64_t> LargestBatches(const job::ResolvedJob& plan) {
  std::vector<int64_t> largest(plan.tables.size());
  auto source = data::NewTrainSource(plan, 0);
  EXPECT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->StartEpoch(0).ok());
  for (;;) {
    data::Batch batch;
    const absl::Status read = (*source)->Next(&batch);
    EXPECT_TRUE(read.ok()) << read;
    if (!read.ok() || batch.samples == 0) return largest;
    for (const data::SparseInput& input : batch.sparse) {
      largest[input.table] =
          std::max(largest[input.table], static_cast<int64_t>(input.keys.size()));
    }
  }
}

int64_t ParametersOf(const job::ResolvedJob& plan) {
  const absl::StatusOr<data::DataShape> shape = data::FindDataShape(plan);
  EXPECT_TRUE(shape.ok()) << shape.status();
  models::ModelInputs inputs;
  inputs.numeric = shape->numeric;
  for (const job::TablePlan& table : plan.tables) {
    if (table.dense) continue;
    inputs.tables.push_back(
        {table.name, static_cast<int>(shape->table_fields[table.id].size()), table.dim});
  }
  const auto model = models::NewDenseModel(plan.job.model(), inputs, /*threads=*/1);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? (*model)->parameter_count() : -1;
}

enum class Ids { kExact, kAtMost };  // whether batches fill the bound

void ExpectBound(const job::ResolvedJob& plan, Ids ids) {
  SCOPED_TRACE(plan.job.ShortDebugString());
  const std::vector<int64_t> largest = LargestBatches(plan);
  double bytes = 0;
  for (const job::TablePlan& table : plan.tables) {
    int64_t rows = 0;  // of the largest push
    if (table.dense) {
      const int64_t parameters = ParametersOf(plan);
      EXPECT_EQ(job::MaxDenseParameters(plan), parameters);
      rows = (parameters + job::kDenseBlockFloats - 1) / job::kDenseBlockFloats;
    } else if (ids == Ids::kExact) {
      EXPECT_EQ(job::MaxIdsOfBatch(plan, table), largest[table.id]) << table.name;
    } else {
      EXPECT_GE(job::MaxIdsOfBatch(plan, table), largest[table.id]) << table.name;
      EXPECT_LE(job::MaxIdsOfBatch(plan, table), 3 * largest[table.id]) << table.name;
    }
    if (!table.dense) rows = job::MaxIdsOfBatch(plan, table);
    bytes += static_cast<double>(rows * (8 + 4 * table.dim));
  }
  EXPECT_EQ(static_cast<double>(job::HeldBytes(plan)), 2 * bytes)
      << "one worker, one shard, BSP: one open step and one in flight";
}

TEST(JobBudgetTest, CriteoWithEveryModelThatReadsIt) {
  const TempDir dir;
  const std::string data = Criteo(dir);
  ExpectBound(PlanOf(data, TableOf("a", 1), "logistic_regression {}"), Ids::kExact);
  ExpectBound(PlanOf(data, TableOf("a", 4), "mlp { hidden: [40, 20] }"), Ids::kExact);
  ExpectBound(PlanOf(data, TableOf("a", 4), "mlp {}"), Ids::kExact);
  ExpectBound(PlanOf(data, TableOf("a", 8), "dlrm { bottom: [16, 8] top: [32] }"), Ids::kExact);
  // Tables that name fields, and one that reads the rest.
  const std::string some = TableOf("a", 8, "field: \"C1\" field: \"C2\"") + TableOf("b", 8);
  ExpectBound(PlanOf(data, some, "dlrm { bottom: [8] }"), Ids::kExact);
}

TEST(JobBudgetTest, RowsOfLibsvmHaveAnyNumberOfIds) {
  const TempDir dir;
  ExpectBound(PlanOf(Libsvm(dir), TableOf("a", 1), "logistic_regression {}"), Ids::kExact);
  ExpectBound(PlanOf(Libsvm(dir), TableOf("a", 6), "mlp { hidden: [3] }"), Ids::kExact);
}

TEST(JobBudgetTest, DelimitedColumns) {
  const TempDir dir;
  const std::string tables = TableOf("a", 4, "field: \"3\"") + TableOf("b", 2);
  ExpectBound(PlanOf(Delimited(dir), tables, "mlp { hidden: [400] }"), Ids::kExact);
}

TEST(JobBudgetTest, NcfWithEveryModelThatReadsIt) {
  const TempDir dir;
  const std::string data = Ncf(dir);
  const std::string user = "field: \"user\"", item = "field: \"item\"";
  const std::string two = TableOf("user", 8, user) + TableOf("item", 8, item);
  ExpectBound(PlanOf(data, two, "gmf {}"), Ids::kAtMost);
  ExpectBound(PlanOf(data, two, "mlp { hidden: [16] }"), Ids::kAtMost);
  const std::string four = TableOf("user_gmf", 8, user) + TableOf("item_gmf", 8, item) +
                           TableOf("user_mlp", 8, user) + TableOf("item_mlp", 8, item);
  ExpectBound(PlanOf(data, four, "neumf { hidden: [32, 8] }"), Ids::kAtMost);
}

// Over several shards keys are dealt by their hash. Whatever the keys, no shard gets more than the
// budget says; and the budget is not just everything.
TEST(JobBudgetTest, NoShardGetsMoreThanItsShare) {
  const TempDir dir;
  const job::ResolvedJob plan = PlanOf(Criteo(dir), TableOf("a", 4), "mlp {}",
                                       "cluster { workers: 1 servers: 4 ranges_per_shard: 1 }");
  const int64_t dense = 8 + 4 * job::kDenseBlockFloats;  // one block, which any shard may have
  const double shard_rows = static_cast<double>(job::HeldBytes(plan) / 2 - dense) / 24;
  const double rows = kBatch * 26;
  EXPECT_LT(shard_rows, rows * 0.75);
  double most = 0;
  for (uint64_t try_ = 0; try_ < 1000; ++try_) {
    int on_shard[4] = {};
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows); ++i) {
      ++on_shard[Position(plan.tables[0].salt, 1000 * try_ + i) >> 62];
    }
    most = std::max<double>(most, *std::max_element(on_shard, on_shard + 4));
  }
  EXPECT_LT(most, shard_rows);
  EXPECT_GT(most, rows / 4 * 1.1) << "an even share and a tenth is not enough";
}

}  // namespace
}  // namespace tandem
