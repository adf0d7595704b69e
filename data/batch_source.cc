// Finds the shape of the data and constructs the sources of batches.
#include "data/batch_source.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/files.h"
#include "data/ncf.h"
#include "data/row_data.h"
#include "data/row_dealer.h"
#include "data/shared_reader.h"
#include "data/statistics.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

constexpr int64_t kDefaultEvaluationBatch = 4096;

// ---- Tables and fields ----

// Gives each table the fields that it lists. A table without a list gets the fields that no table
// lists.
absl::Status AssignFields(const job::ResolvedJob& plan, DataShape* shape) {
  std::set<std::string> unread(shape->fields.begin(), shape->fields.end());
  for (const job::TablePlan& table : plan.tables) {
    for (const std::string& field : table.fields) {
      if (std::find(shape->fields.begin(), shape->fields.end(), field) == shape->fields.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "table '", table.name, "' reads field ", Quote(field), ", which the data do not have; ",
            "hint: their fields are ", absl::StrJoin(shape->fields, ", ")));
      }
      unread.erase(field);
    }
  }
  for (const job::TablePlan& table : plan.tables) {
    std::vector<std::string> fields = table.fields;
    if (fields.empty() && table.of_model()) {
      for (const std::string& field : shape->fields) {
        if (unread.erase(field) > 0) fields.push_back(field);
      }
    }
    if (shape->fields.empty() && table.of_model()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "table '", table.name,
          "' has no field: the data have no categorical column, and every job trains at least one "
          "table of ids; hint: data.columns.categorical; a number of few values may stand there, "
          "too"));
    }
    if (fields.empty() && table.of_model()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table '", table.name,
                       "' has no field: it names none, and other tables read "
                       "all the fields there are; hint: remove it or give it a field"));
    }
    shape->table_fields.push_back(std::move(fields));
  }
  if (unread.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("no table reads field ", Quote(*unread.begin()),
                   unread.size() > 1 ? absl::StrCat(" (and ", unread.size() - 1, " more)") : "",
                   "; hint: leave `field` of one table empty, and it reads all the rest"));
}

BatchBuilder NewBatchBuilder(const job::ResolvedJob& plan, const DataShape& shape) {
  const job::RowShape row = job::RowShapeOf(plan.job.data());
  std::vector<TableLayout> layouts;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (shape.table_fields[t].empty()) continue;
    TableLayout layout{plan.tables[t].id, {}};
    for (const std::string& field : shape.table_fields[t]) {
      const auto at = std::find(shape.fields.begin(), shape.fields.end(), field);
      const auto f = static_cast<size_t>(at - shape.fields.begin());
      layout.fields.push_back(static_cast<int>(f));
      layout.bags |= row.bags[f].bag;
      layout.weighted |= row.bags[f].weighted;
    }
    layouts.push_back(std::move(layout));
  }
  return BatchBuilder(shape.numeric, std::move(layouts));
}

int64_t EvaluationBatch(const job::ResolvedJob& plan) {
  const int64_t asked = plan.job.evaluation().batch_size();
  return asked > 0 ? asked : kDefaultEvaluationBatch;
}

}  // namespace

absl::StatusOr<DataShape> ShapeOfJob(const job::ResolvedJob& plan) {
  if (plan.job.data().format() == Data::PROGRAM) {  // the fields are those that tables list
    DataShape program;
    for (const job::TablePlan& table : plan.tables) {
      program.fields.insert(program.fields.end(), table.fields.begin(), table.fields.end());
      program.table_fields.push_back(table.fields);
    }
    return program;
  }
  job::RowShape row = job::RowShapeOf(plan.job.data());
  DataShape shape{row.numbers, std::move(row.fields), {}};
  TANDEM_RETURN_IF_ERROR(AssignFields(plan, &shape));
  return shape;
}

absl::StatusOr<DataShape> FindDataShape(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(DataShape shape, ShapeOfJob(plan));
  if (plan.job.data().format() == Data::PROGRAM) return shape;
  if (data.format() == Data::LIBSVM && plan.model_tables() > 1) {
    return absl::InvalidArgumentError("LIBSVM data feed one table, expected no second `table`");
  }
  if (data.train().empty() && !data.score_only()) {
    return absl::InvalidArgumentError("data.train is not set, expected at least one file or glob");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, FirstFiles(data));
  if (data.format() == Data::NCF) return shape;
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data, nullptr));
  // Reads the header, or a row.
  TANDEM_RETURN_IF_ERROR(CountRows({files[0]}, parser.get(), 1).status());
  return shape;
}

namespace {

// The number of rows of one worker. The number is exact where the rows are counted, else an
// estimate.
absl::StatusOr<int64_t> EstimateShare(const RowPart& part, int workers, RowParser* parser) {
  const RowSelection& selection = part.rows;
  int64_t rows = selection.end.row - selection.begin.row;
  if (selection.begin.row == 0) {
    // A worker with blocks reads little of the blocks of others.
    constexpr int64_t kSmallSampleBytes = int64_t{64} << 10;
    const int64_t sample = part.blocks.empty() ? kLargeSampleBytes : kSmallSampleBytes;
    TANDEM_ASSIGN_OR_RETURN(const int64_t estimate, EstimateRows(part.files, sample, parser));
    rows = std::min(rows, estimate);
  }
  double share = 1.0 / workers;
  if (selection.part == RowSelection::Part::kPicked) share *= selection.chance;
  if (selection.part == RowSelection::Part::kOthers) share *= 1 - selection.chance;
  return static_cast<int64_t>(static_cast<double>(rows) * share);
}

// A purpose of rows. `part` names the rows in RowParts, and `shared` names what workers share about
// them in SharedReader.
struct Purpose {
  RowPart RowParts::*part;
  SharedReader::Part SharedReader::*shared;
};
constexpr Purpose kTrain = {&RowParts::train, &SharedReader::train};
constexpr Purpose kTest = {&RowParts::test, &SharedReader::test};
constexpr Purpose kValidation = {&RowParts::validation, &SharedReader::validation};

// The shape of the data. If workers share a reader, the first of them finds it for all. The
// functions below do the same for other things.
absl::StatusOr<DataShape> ShapeFor(const job::ResolvedJob& plan, SharedReader* shared) {
  if (shared != nullptr && shared->shape.has_value()) return *shared->shape;
  TANDEM_ASSIGN_OR_RETURN(DataShape shape, FindDataShape(plan));
  if (shared != nullptr) shared->shape = shape;
  return shape;
}

absl::StatusOr<RowParts> PartsFor(const job::ResolvedJob& plan, RowParser* parser,
                                  SharedReader* shared) {
  if (shared != nullptr && shared->parts.has_value()) return *shared->parts;
  TANDEM_ASSIGN_OR_RETURN(RowParts parts, FindRowParts(plan, parser));
  if (shared != nullptr) shared->parts = parts;
  return parts;
}

absl::Status JoinPasses(const job::ResolvedJob& plan, const RowPart& part, RowParser* parser,
                        SharedReader::Part* shared, RowSourceOptions* options) {
  if (shared->dealers == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(shared->estimated_rows, EstimateShare(part, plan.workers(), parser));
    shared->dealers = std::make_unique<RowDealers>(
        part.files, part.rows, plan.workers(),
        [&data = plan.job.data()] { return NewRowParser(data, nullptr); });
  }
  options->dealers = shared->dealers.get();
  options->estimated_rows = shared->estimated_rows;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewSource(const job::ResolvedJob& plan,
                                                       const DataShape& shape, int rank,
                                                       const Purpose& purpose,
                                                       SharedReader* shared) {
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(const DataStatistics statistics, StatisticsOf(plan));
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data, &statistics));
  TANDEM_ASSIGN_OR_RETURN(const RowParts parts, PartsFor(plan, parser.get(), shared));
  const RowPart& part = parts.*purpose.part;
  RowSourceOptions options;
  options.files = part.files;
  options.stamps = part.stamps;
  options.selection = part.rows;
  options.share = {rank, plan.workers()};
  if (!part.blocks.empty()) options.blocks = part.blocks[static_cast<size_t>(rank)];
  options.max_bad_rows = data.max_bad_rows();
  options.seed = plan.job.seed();
  options.batch = EvaluationBatch(plan);
  if (purpose.part == &RowParts::train) {
    options.batch = std::max(1, plan.job.train().batch_size());
    options.shuffle_buffer = std::max<int64_t>(0, data.shuffle_buffer());
  }
  if (shared != nullptr && part.blocks.empty()) {
    TANDEM_RETURN_IF_ERROR(
        JoinPasses(plan, part, parser.get(), &(shared->*purpose.shared), &options));
  } else {
    TANDEM_ASSIGN_OR_RETURN(options.estimated_rows,
                            EstimateShare(part, plan.workers(), parser.get()));
  }
  if (shared == nullptr) {
    options.readers = std::max(1, data.readers());
    options.make_parser = [data, statistics] { return NewRowParser(data, &statistics); };
  }
  return NewRowSource(std::move(options), std::move(parser), NewBatchBuilder(plan, shape));
}

absl::StatusOr<std::shared_ptr<NcfEpochs>> EpochsFor(const job::ResolvedJob& plan,
                                                     SharedReader* shared) {
  if (shared != nullptr && shared->epochs != nullptr) return shared->epochs;
  TANDEM_ASSIGN_OR_RETURN(NcfEpochs loaded, LoadNcfEpochs(plan));
  auto epochs = std::make_shared<NcfEpochs>(std::move(loaded));
  if (shared != nullptr) shared->epochs = epochs;
  return epochs;
}

absl::StatusOr<std::shared_ptr<const RankingGroups>> GroupsFor(const job::ResolvedJob& plan,
                                                               SharedReader* shared) {
  if (shared != nullptr && shared->groups != nullptr) return shared->groups;
  TANDEM_ASSIGN_OR_RETURN(RankingGroups loaded, LoadRankingGroups(plan));
  auto groups = std::make_shared<const RankingGroups>(std::move(loaded));
  if (shared != nullptr) shared->groups = groups;
  return groups;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BatchSource>> NewTrainSource(const job::ResolvedJob& plan, int rank,
                                                            SharedReader* shared) {
  TANDEM_CHECK(rank >= 0 && rank < plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, ShapeFor(plan, shared));
  if (plan.job.data().format() != Data::NCF) return NewSource(plan, shape, rank, kTrain, shared);
  TANDEM_ASSIGN_OR_RETURN(auto epochs, EpochsFor(plan, shared));
  return NewNcfTrainSource(std::move(epochs), NewBatchBuilder(plan, shape),
                           std::max(1, plan.job.train().batch_size()), rank, plan.workers());
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewTestSource(const job::ResolvedJob& plan, int rank,
                                                           SharedReader* shared) {
  TANDEM_CHECK(rank >= 0 && rank < plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, ShapeFor(plan, shared));
  if (plan.job.data().format() != Data::NCF) return NewSource(plan, shape, rank, kTest, shared);
  if (plan.job.data().score_only()) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<Interaction> pairs, LoadPairs(plan.job.data()));
    return NewNcfPairSource(std::move(pairs), NewBatchBuilder(plan, shape), EvaluationBatch(plan),
                            rank, plan.workers());
  }
  TANDEM_ASSIGN_OR_RETURN(auto groups, GroupsFor(plan, shared));
  return NewNcfTestSource(std::move(groups), NewBatchBuilder(plan, shape), EvaluationBatch(plan),
                          rank, plan.workers());
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewValidationSource(const job::ResolvedJob& plan,
                                                                 int rank, SharedReader* shared) {
  TANDEM_CHECK(rank >= 0 && rank < plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, ShapeFor(plan, shared));
  return NewSource(plan, shape, rank, kValidation, shared);
}

bool HasTestRows(const Data& data) {
  return !data.test().empty() || data.test_fraction() > 0 ||
         !data.negatives().test_negatives().empty();
}

bool HasValidationRows(const Data& data) {
  const Validation& validation = data.validation();
  return !validation.files().empty() || validation.fraction() > 0 || validation.last_fraction() > 0;
}

}  // namespace tandem::data
