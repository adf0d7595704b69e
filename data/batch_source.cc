// The choice of a reader by the job's format, the shape of the data, and the checks before a start.
#include "data/batch_source.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/files.h"
#include "data/ncf.h"
#include "data/row_source.h"

namespace tandem {
namespace {

constexpr int64_t kDefaultEvaluationBatch = 4096;
constexpr char kLibsvmField[] = "features";

// ---- Formats. Adding a format: a case in each of the next two functions. ----

absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data) {
  switch (data.format()) {
    case Data::CRITEO:
      return NewCriteoParser();
    case Data::LIBSVM:
      return NewLibsvmParser(data.max_ids());
    case Data::DELIMITED:
      return NewDelimitedParser(data.columns());
    default:
      return absl::InvalidArgumentError(
          "data.format is not set, expected CRITEO, LIBSVM, DELIMITED or NCF");
  }
}

void FindFields(const Data& data, DataShape* shape) {
  switch (data.format()) {
    case Data::CRITEO:
      shape->numeric = kCriteoNumbers;
      for (int f = 1; f <= kCriteoFields; ++f) shape->fields.push_back(absl::StrCat("C", f));
      break;
    case Data::LIBSVM:
      shape->fields = {kLibsvmField};
      break;
    case Data::DELIMITED:
      shape->numeric = data.columns().numeric_size();
      shape->fields.assign(data.columns().categorical().begin(),
                           data.columns().categorical().end());
      break;
    case Data::NCF:
      shape->fields = {kNcfUserField, kNcfItemField};
      break;
    default:
      break;
  }
}

// ---- Files ----

absl::StatusOr<std::vector<std::string>> TrainFiles(const Data& data) {
  if (data.train().empty()) {
    return absl::InvalidArgumentError("data.train is not set, expected at least one file or glob");
  }
  return ExpandAllFiles("data.train", {data.train().begin(), data.train().end()});
}

absl::StatusOr<std::vector<std::string>> TestFiles(const Data& data) {
  return ExpandAllFiles("data.test", {data.test().begin(), data.test().end()});
}

bool SplitsTrainFiles(const Data& data) { return data.test().empty() && data.test_fraction() > 0; }

// The rows of the train files that train, and those that test (an empty range if test rows come
// from files of their own, or there are none). Counts the rows only if it must.
struct Split {
  RowRange train;
  RowRange test = {0, 0};
};

absl::StatusOr<Split> FindSplit(const Data& data, const std::vector<std::string>& files,
                                RowParser* parser) {
  if (data.test_fraction() < 0 || data.test_fraction() >= 1) {
    return absl::InvalidArgumentError(absl::StrCat("data.test_fraction is ", data.test_fraction(),
                                                   ", expected a number from 0 to below 1"));
  }
  Split split;
  if (data.max_rows() > 0) split.train.end = data.max_rows();
  if (!SplitsTrainFiles(data)) return split;
  TANDEM_ASSIGN_OR_RETURN(const int64_t rows, CountRows(files, parser, split.train.end));
  const int64_t test_rows = std::llround(static_cast<double>(rows) * data.test_fraction());
  if (test_rows == 0 || test_rows == rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.test_fraction ", data.test_fraction(), " of ", rows, " rows leaves ",
        test_rows == 0 ? "no test row" : "no training row", "; hint: change it or name data.test"));
  }
  split.train = {0, rows - test_rows};
  split.test = {rows - test_rows, rows};
  return split;
}

// ---- Tables and fields ----

// Gives each table the fields it names; a table that names none gets those nobody names.
absl::Status AssignFields(const JobPlan& plan, DataShape* shape) {
  std::set<std::string> unread(shape->fields.begin(), shape->fields.end());
  for (const TablePlan& table : plan.tables) {
    for (const std::string& field : table.fields) {
      if (std::find(shape->fields.begin(), shape->fields.end(), field) == shape->fields.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "table '", table.name, "' reads field ", Quote(field), ", which the data do not have; ",
            "hint: a field is one of data.columns.categorical, or C1 to C26 for CRITEO, '",
            kLibsvmField, "' for LIBSVM, 'user' and 'item' for NCF"));
      }
      unread.erase(field);
    }
  }
  for (const TablePlan& table : plan.tables) {
    std::vector<std::string> fields = table.fields;
    if (fields.empty() && !table.dense) {
      for (const std::string& field : shape->fields) {
        if (unread.erase(field) > 0) fields.push_back(field);
      }
    }
    if (fields.empty() && !table.dense) {
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

BatchBuilder NewBatchBuilder(const JobPlan& plan, const DataShape& shape) {
  std::vector<TableLayout> layouts;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (shape.table_fields[t].empty()) continue;
    TableLayout layout{plan.tables[t].id, {}};
    for (const std::string& field : shape.table_fields[t]) {
      const auto at = std::find(shape.fields.begin(), shape.fields.end(), field);
      layout.fields.push_back(static_cast<int>(at - shape.fields.begin()));
    }
    layouts.push_back(std::move(layout));
  }
  return BatchBuilder(shape.numeric, std::move(layouts), plan.job.data().format() == Data::LIBSVM);
}

int64_t EvaluationBatch(const JobPlan& plan) {
  const int64_t asked = plan.job.evaluation().batch();
  return asked > 0 ? asked : kDefaultEvaluationBatch;
}

}  // namespace

absl::StatusOr<DataShape> FindDataShape(const JobPlan& plan) {
  const Data& data = plan.job.data();
  DataShape shape;
  FindFields(data, &shape);
  TANDEM_RETURN_IF_ERROR(AssignFields(plan, &shape));
  if (data.format() == Data::LIBSVM && plan.tables.size() > (plan.dense_table >= 0 ? 2 : 1)) {
    return absl::InvalidArgumentError("LIBSVM data feed one table, expected no second `table`");
  }
  TANDEM_ASSIGN_OR_RETURN(auto files, TrainFiles(data));
  if (data.format() == Data::NCF) return shape;
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data));
  TANDEM_RETURN_IF_ERROR(CountRows({files[0]}, parser.get(), 1).status());  // its header, or a row
  return shape;
}

namespace {

absl::Status CheckWorkers(const JobPlan& plan, int64_t rows) {
  if (rows >= plan.workers()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.train has ", rows, " rows for ", plan.workers(),
                   " workers, expected at least one row for each; hint: lower cluster.workers"));
}

// Parses the first `bytes` of each file, and no more than `rows` rows in all.
absl::Status CheckRows(const std::vector<std::string>& files, RowParser* parser, int64_t bytes,
                       int64_t rows) {
  Row row;
  for (const std::string& name : files) {
    TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(name));
    RowFile file(std::move(lines), parser);
    int64_t left = bytes;
    while (left > 0 && rows > 0) {
      absl::string_view line;
      TANDEM_ASSIGN_OR_RETURN(const bool more, file.Next(&line));
      if (!more) break;
      TANDEM_RETURN_IF_ERROR(file.Parse(line, &row));
      left -= static_cast<int64_t>(line.size()) + 1;
      --rows;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRowData(const JobPlan& plan) {
  // About a second of parsing in all, so that files of this size are checked to their last row.
  constexpr int64_t kCheckBytes = int64_t{64} << 20;
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(auto train, TrainFiles(data));
  TANDEM_ASSIGN_OR_RETURN(auto test, TestFiles(data));
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data));
  const int64_t bytes = kCheckBytes / static_cast<int64_t>(train.size() + test.size()) + 1;
  TANDEM_ASSIGN_OR_RETURN(const Split split, FindSplit(data, train, parser.get()));
  const int64_t rows = SplitsTrainFiles(data) ? split.test.end : split.train.end;
  TANDEM_RETURN_IF_ERROR(CheckRows(train, parser.get(), bytes, rows));
  TANDEM_RETURN_IF_ERROR(CheckRows(test, parser.get(), bytes, RowRange().end));
  const int64_t enough = std::min<int64_t>(split.train.end, plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const int64_t train_rows, CountRows(train, parser.get(), enough));
  return CheckWorkers(plan, train_rows);
}

absl::Status CheckNcfData(const JobPlan& plan) {
  if (plan.job.data().test_fraction() != 0) {
    return absl::InvalidArgumentError(
        "data.test_fraction does not go with format: NCF; hint: name "
        "data.negatives.test_negatives");
  }
  TANDEM_ASSIGN_OR_RETURN(const NcfEpochs epochs, LoadNcfEpochs(plan));
  TANDEM_RETURN_IF_ERROR(LoadRankingGroups(plan).status());
  return CheckWorkers(plan, epochs.rows());
}

RowSourceOptions BaseOptions(const JobPlan& plan, int rank) {
  RowSourceOptions options;
  options.rank = rank;
  options.workers = plan.workers();
  options.seed = plan.job.seed();
  return options;
}

// Sets the share of this worker where the rows are counted, else an estimate of it.
absl::Status EstimateShare(RowParser* parser, RowSourceOptions* options) {
  const RowRange& range = options->range;
  int64_t rows = range.end - range.begin;
  if (range.begin == 0) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t estimate, EstimateRows(options->files, parser));
    rows = std::min(rows, estimate);
  }
  options->estimated_rows = rows / options->workers;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewRowTrainSource(const JobPlan& plan,
                                                               const DataShape& shape, int rank) {
  const Data& data = plan.job.data();
  RowSourceOptions options = BaseOptions(plan, rank);
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data));
  TANDEM_ASSIGN_OR_RETURN(options.files, TrainFiles(data));
  TANDEM_ASSIGN_OR_RETURN(const Split split, FindSplit(data, options.files, parser.get()));
  options.range = split.train;
  options.batch = std::max(1, plan.job.train().batch());
  options.shuffle_buffer = std::max<int64_t>(0, data.shuffle_buffer());
  TANDEM_RETURN_IF_ERROR(EstimateShare(parser.get(), &options));
  return NewRowSource(std::move(options), std::move(parser), NewBatchBuilder(plan, shape));
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewRowTestSource(const JobPlan& plan,
                                                              const DataShape& shape, int rank) {
  const Data& data = plan.job.data();
  RowSourceOptions options = BaseOptions(plan, rank);
  TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(data));
  if (SplitsTrainFiles(data)) {
    TANDEM_ASSIGN_OR_RETURN(options.files, TrainFiles(data));
    TANDEM_ASSIGN_OR_RETURN(const Split split, FindSplit(data, options.files, parser.get()));
    options.range = split.test;
  } else {
    TANDEM_ASSIGN_OR_RETURN(options.files, TestFiles(data));  // none: a source without rows
  }
  options.batch = EvaluationBatch(plan);
  TANDEM_RETURN_IF_ERROR(EstimateShare(parser.get(), &options));
  return NewRowSource(std::move(options), std::move(parser), NewBatchBuilder(plan, shape));
}

}  // namespace

absl::Status CheckData(const JobPlan& plan) {
  TANDEM_RETURN_IF_ERROR(FindDataShape(plan).status());
  return plan.job.data().format() == Data::NCF ? CheckNcfData(plan) : CheckRowData(plan);
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewTrainSource(const JobPlan& plan, int rank) {
  TANDEM_CHECK(rank >= 0 && rank < plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan));
  if (plan.job.data().format() != Data::NCF) return NewRowTrainSource(plan, shape, rank);
  TANDEM_ASSIGN_OR_RETURN(NcfEpochs epochs, LoadNcfEpochs(plan));
  return NewNcfTrainSource(std::move(epochs), NewBatchBuilder(plan, shape),
                           std::max(1, plan.job.train().batch()), rank, plan.workers());
}

absl::StatusOr<std::unique_ptr<BatchSource>> NewTestSource(const JobPlan& plan, int rank) {
  TANDEM_CHECK(rank >= 0 && rank < plan.workers());
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan));
  if (plan.job.data().format() != Data::NCF) return NewRowTestSource(plan, shape, rank);
  TANDEM_ASSIGN_OR_RETURN(RankingGroups groups, LoadRankingGroups(plan));
  return NewNcfTestSource(std::move(groups), NewBatchBuilder(plan, shape), EvaluationBatch(plan),
                          rank, plan.workers());
}

}  // namespace tandem
