// What is looked at before a job starts: whether files can be read, and whether what is in them is
// what somebody who wrote this job can have meant.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "data/cells.h"
#include "data/ncf.h"
#include "data/row_data.h"
#include "data/service_trace.h"
#include "data/transforms.h"

namespace tandem::data {
namespace {

constexpr double kFarFromUnit = 1000;  // numbers beyond it upset gradient descent

absl::Status CheckWorkers(const job::JobPlan& plan, int64_t rows) {
  if (rows >= plan.workers()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("data.train has ", rows, " rows for ", plan.workers(),
                   " workers, expected at least one row for each; hint: lower cluster.workers"));
}

// What the rows of one part have shown.
class PartObserver {
 public:
  // `shape` is that of the plan and outlives this.
  PartObserver(std::string name, const job::JobPlan& plan, const DataShape& shape)
      : name_(std::move(name)), data_(plan.job.data()), shape_(shape) {
    for (const std::string& field : shape_.fields) missing_.push_back(FieldHash(field).missing());
    field_seen_.resize(shape_.fields.size());
    if (data_.format() != Data::DELIMITED) return;
    columns_.resize(static_cast<size_t>(data_.columns().numeric_size()));
  }

  void See(const Row& row, const RowParser& parser) {
    ++labels_[row.label == 1 ? 1 : 0];
    for (const float weight : row.weights) most_weight_ = std::max(most_weight_, std::fabs(weight));
    for (size_t f = 0; row.weights.empty() && f < row.keys.size(); ++f) {
      if (row.keys[f] != missing_[f]) field_seen_[f] = true;
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      const double x = parser.values()[i];
      if (std::isnan(x)) continue;
      columns_[i].seen = true;
      columns_[i].most = std::max(columns_[i].most, std::fabs(x));
    }
  }

  int64_t rows() const { return labels_[0] + labels_[1]; }

  void WarnOfLabels(std::vector<std::string>* warnings) const {
    if (rows() < 2 || (labels_[0] > 0 && labels_[1] > 0)) return;
    warnings->push_back(
        absl::StrCat(name_, ": all ", rows(), " rows that were looked at have label ",
                     labels_[1] > 0 ? 1 : 0, ", so there is nothing to tell apart; hint: ",
                     name_ == "data.train"
                         ? "see data.columns.label and data.columns.positive"
                         : "are the rows sorted by label? Shuffle the file before it is split"));
  }

  void WarnOfColumns(std::vector<std::string>* warnings) const {
    const auto no_value = [&](absl::string_view column) {
      warnings->push_back(absl::StrCat(
          name_, ": column ", Quote(column), " has no value in any of the ", rows(),
          " rows that were looked at; hint: see data.columns.missing, or leave the column out"));
    };
    for (size_t f = 0; data_.format() != Data::LIBSVM && f < field_seen_.size(); ++f) {
      if (!field_seen_[f]) no_value(shape_.fields[f]);
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      const std::string& column = data_.columns().numeric(static_cast<int>(i));
      if (!columns_[i].seen) no_value(column);
      const bool scaled = IsStandardised(data_.columns(), RuleOf(data_.columns(), column));
      if (scaled || columns_[i].most <= kFarFromUnit) continue;
      warnings->push_back(
          absl::StrCat(name_, ": numbers of column ", Quote(column), " reach ", columns_[i].most,
                       " and are used as they are; hint: scale: STANDARDISE, or log: true"));
    }
    if (most_weight_ <= kFarFromUnit) return;
    warnings->push_back(absl::StrCat(name_, ": values reach ", most_weight_,
                                     " and are used as they are; hint: scale them to about 1 in "
                                     "the file"));
  }

 private:
  struct NumericColumn {
    bool seen = false;
    double most = 0;  // largest magnitude
  };
  const std::string name_;
  const Data& data_;
  const DataShape& shape_;
  std::array<int64_t, 2> labels_ = {};
  std::vector<uint64_t> missing_;  // the key of "no value", per field
  std::vector<bool> field_seen_;
  std::vector<NumericColumn> columns_;
  float most_weight_ = 0;
};

bool IsNotUtf8(absl::string_view text) { return !IsUtf8(text); }

class DataCheck {
 public:
  DataCheck(const job::JobPlan& plan, const DataShape& shape, RowParser* parser, DataReport* report)
      : plan_(plan),
        parser_(parser),
        report_(report),
        bad_rows_(plan.job.data().skip_bad_rows()),
        train_("data.train", plan, shape),
        validation_("data.validation", plan, shape),
        test_("data.test", plan, shape) {}

  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(plan_, parser_));
    // About a second of parsing in all, so that files of this size are checked to their last row.
    constexpr int64_t kCheckBytes = int64_t{64} << 20;
    const size_t files =
        parts.train.files.size() + parts.validation.files.size() + parts.test.files.size();
    bytes_ = kCheckBytes / static_cast<int64_t>(files) + 1;
    if (plan_.job.data().skip_bad_rows() > 0) bytes_ = std::numeric_limits<int64_t>::max();
    TANDEM_RETURN_IF_ERROR(ReadTrainFiles(parts));
    if (!plan_.job.data().validation().files().empty()) {
      TANDEM_RETURN_IF_ERROR(
          ReadFiles(parts.validation.files, [&](int64_t) { return &validation_; }));
    }
    if (!plan_.job.data().test().empty()) {
      TANDEM_RETURN_IF_ERROR(ReadFiles(parts.test.files, [&](int64_t) { return &test_; }));
    }
    report_->bad_rows = bad_rows_.texts();
    Warn();
    return CheckCounts(parts);
  }

 private:
  // Their rows may belong to any part.
  absl::Status ReadTrainFiles(const RowParts& parts) {
    return ReadFiles(parts.train.files, [&](int64_t row) -> PartObserver* {
      if (parts.train.rows.Has(row)) return &train_;
      if (plan_.job.data().validation().files().empty() && parts.validation.rows.Has(row) &&
          !parts.validation.files.empty()) {
        return &validation_;
      }
      if (plan_.job.data().test_fraction() > 0 && parts.test.rows.Has(row)) return &test_;
      return nullptr;
    });
  }

  // `observer_of` says whose the row of this number is; nullptr: nobody's, nor any after it.
  template <typename ObserverOf>
  absl::Status ReadFiles(const std::vector<std::string>& files, const ObserverOf& observer_of) {
    int64_t number = 0;
    Row row;
    for (const std::string& name : files) {
      TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(name));
      RowFile file(std::move(lines), parser_);
      bool odd_text = false;
      for (int64_t left = bytes_; left > 0;) {
        PartObserver* const observer = observer_of(number);
        if (observer == nullptr) return absl::OkStatus();
        absl::string_view line;
        TANDEM_ASSIGN_OR_RETURN(const bool more, file.Next(&line));
        if (!more) break;
        ++number;
        left -= static_cast<int64_t>(line.size()) + 1;
        if (const absl::Status parsed = file.Parse(line, &row); !parsed.ok()) {
          TANDEM_RETURN_IF_ERROR(bad_rows_.Add(parsed));
          continue;
        }
        observer->See(row, *parser_);
        if (!odd_text && !IsUtf8(line)) odd_text = WarnOfText(file.lines());
      }
    }
    return absl::OkStatus();
  }

  // True if the row last parsed has text of an unknown encoding in a column that is read.
  bool WarnOfText(const LineReader& lines) {
    const std::string cell = parser_->ShownIf(IsNotUtf8);
    if (cell.empty()) return false;
    report_->warnings.push_back(absl::StrCat(
        lines.name(), ":", lines.line_number(), ": ", cell,
        ", which is not UTF-8; ids are made of the bytes, so all files must be in one encoding; "
        "hint: iconv -f LATIN1 -t UTF-8"));
    return true;
  }

  void Warn() {
    for (const PartObserver* part : {&train_, &validation_, &test_}) {
      part->WarnOfLabels(&report_->warnings);
    }
    train_.WarnOfColumns(&report_->warnings);
    if (report_->bad_rows.empty()) return;
    report_->warnings.push_back(absl::StrCat(
        report_->bad_rows.size(), " bad rows are skipped; the first: ", report_->bad_rows[0]));
  }

  absl::Status CheckCounts(const RowParts& parts) {
    const double fraction = plan_.job.data().validation().fraction();
    if (fraction > 0 && (train_.rows() == 0 || validation_.rows() == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.validation.fraction ", fraction, " of ", train_.rows() + validation_.rows(),
          " rows leaves no ", train_.rows() == 0 ? "training" : "validation",
          " row; hint: change it or name data.validation.files"));
    }
    const int64_t enough = std::min<int64_t>(parts.train.rows.end, plan_.workers());
    TANDEM_ASSIGN_OR_RETURN(const int64_t rows, CountRows(parts.train.files, parser_, enough));
    return CheckWorkers(plan_, rows);
  }

  const job::JobPlan& plan_;
  RowParser* const parser_;
  DataReport* const report_;
  BadRows bad_rows_;
  PartObserver train_, validation_, test_;
  int64_t bytes_ = 0;  // to parse of each file
};

absl::Status CheckNcfData(const job::JobPlan& plan) {
  if (plan.job.data().test_fraction() != 0) {
    return absl::InvalidArgumentError(
        "data.test_fraction does not go with format: NCF; hint: name "
        "data.negatives.test_negatives");
  }
  TANDEM_ASSIGN_OR_RETURN(const NcfEpochs epochs, LoadNcfEpochs(plan));
  TANDEM_RETURN_IF_ERROR(LoadRankingGroups(plan).status());
  return CheckWorkers(plan, epochs.rows());
}

}  // namespace

absl::Status CheckData(const job::JobPlan& plan, DataReport* report) {
  DataReport ignored;
  TANDEM_RETURN_IF_ERROR(CheckServiceTraces(plan));
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan));
  if (plan.job.data().format() == Data::PROGRAM) return absl::OkStatus();  // no files
  if (plan.job.data().format() == Data::NCF) return CheckNcfData(plan);
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(plan.job.data(), nullptr));
  return DataCheck(plan, shape, parser.get(), report == nullptr ? &ignored : report).Run();
}

}  // namespace tandem::data
