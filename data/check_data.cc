// CheckData: the checks of data files before a job starts. CheckData refuses files that cannot be
// read or used, and warns of contents that the author of the job probably did not intend.
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "data/batch_source.h"
#include "data/cells.h"
#include "data/files.h"
#include "data/id_check.h"
#include "data/ncf.h"
#include "data/row_data.h"
#include "data/service_trace.h"
#include "data/transforms.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

constexpr double kFarFromUnit = 1000;  // larger numbers disturb gradient descent
constexpr double kNearlyAll = 0.95;    // share of the values of a column
constexpr int64_t kFewRows = 100;      // with fewer rows, nothing is unusual

absl::Status CheckWorkers(const job::ResolvedJob& plan, int64_t rows) {
  if (rows >= plan.workers()) return absl::OkStatus();
  if (rows == 0) return absl::InvalidArgumentError("data.train: there is no row in these files");
  return absl::InvalidArgumentError(
      absl::StrCat("data.train has ", rows, " rows for ", plan.workers(),
                   " workers, expected at least one row for each; hint: lower cluster.workers"));
}

void WarnOfBatch(const job::ResolvedJob& plan, int64_t rows, std::vector<std::string>* warnings) {
  const int64_t share = (rows + plan.workers() - 1) / plan.workers();
  const int64_t batch = plan.job.train().batch_size();
  if (batch < share || rows < kFewRows || plan.job.train().evaluate_only()) return;
  warnings->push_back(absl::StrCat("train.batch_size is ", batch, ", and a worker has ", share,
                                   " rows, so an epoch is one step; hint: take a smaller batch"));
}

// Estimates how many values of a column repeat. Only a sample of the ids is counted. When the
// sample is full, half of its ids are dropped.
class ValueCount {
 public:
  void Add(uint64_t key) {
    if (repeats_ || (Mix64(key) & left_out_) != 0) return;
    ++seen_;
    values_.insert(key);
    if (seen_ % kLook == 0 && seen_ > 2 * values_.size()) {  // the values repeat; stop counting
      repeats_ = true;
      values_.clear();
    }
    if (values_.size() < kMax) return;
    left_out_ = 2 * left_out_ + 1;
    const size_t before = values_.size();
    absl::erase_if(values_, [&](uint64_t v) { return (Mix64(v) & left_out_) != 0; });
    seen_ = seen_ * values_.size() / before;
  }
  // The share of values that no earlier row had. 0: most values repeat, or too few rows were seen.
  double ShareOfNew() const {
    if (repeats_ || seen_ < static_cast<size_t>(kFewRows)) return 0;
    return static_cast<double>(values_.size()) / static_cast<double>(seen_);
  }

 private:
  static constexpr size_t kLook = 1024, kMax = size_t{1} << 16;
  absl::flat_hash_set<uint64_t> values_;
  size_t seen_ = 0;        // occurrences of the ids in the sample
  uint64_t left_out_ = 0;  // ids with one of these bits in their hash are not in the sample
  bool repeats_ = false;
};

// Collects what the rows of one part show, and warns about it.
class PartObserver {
 public:
  // `shape` is the shape of the plan's data and must outlive the observer.
  PartObserver(std::string name, const job::ResolvedJob& plan, const DataShape& shape)
      : name_(std::move(name)), data_(plan.job.data()), shape_(shape) {
    for (const std::string& field : shape_.fields) missing_.push_back(FieldHash(field).missing());
    field_seen_.resize(shape_.fields.size());
    values_.resize(shape_.fields.size());
    if (!job::HasColumns(data_)) return;
    columns_.resize(static_cast<size_t>(data_.columns().numeric_size()));
  }

  void See(const Row& row, const RowParser& parser) {
    ++rows_;
    if (!std::isnan(row.label)) ++labels_[row.label == 1 ? 1 : 0];
    if (data_.format() == Data::LIBSVM) {
      for (const float x : row.weights) max_weight_ = std::max(max_weight_, std::fabs(x));
    }
    for (size_t f = 0; data_.format() != Data::LIBSVM && f < missing_.size(); ++f) {
      if (row.keys[row.begin(f)] == missing_[f]) continue;
      field_seen_[f] = true;
      for (size_t k = row.begin(f); k < row.end(f); ++k) values_[f].Add(row.keys[k]);
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      const double x = parser.values()[i];
      if (std::isnan(x)) continue;
      columns_[i].seen = true;
      columns_[i].most = std::max(columns_[i].most, std::fabs(x));
    }
  }

  void SeeBad(const absl::Status& bad) {
    if (first_bad_.empty()) first_bad_ = std::string(bad.message());
  }

  const std::string& name() const { return name_; }
  int64_t rows() const { return rows_; }

  // Refuses a part of which all rows are bad.
  absl::Status CheckGoodRows() const {
    if (rows_ > 0 || first_bad_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": all rows are bad, expected a good one; the first: ", first_bad_));
  }

  void WarnOfLabels(std::vector<std::string>* warnings) const {
    if (rows() < 2 || data_.score_only() || (labels_[0] > 0 && labels_[1] > 0)) return;
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
      const double share = values_[f].ShareOfNew();
      if (data_.score_only() || share < kNearlyAll) continue;
      warnings->push_back(absl::StrCat(
          name_, ": column ", Quote(shape_.fields[f]), " has a different value in ",
          share == 1 ? "each row" : "nearly each row", " (", rows(),
          " were looked at), so nothing is learned for other rows; hint: leave the column out"));
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
    if (max_weight_ <= kFarFromUnit) return;
    warnings->push_back(absl::StrCat(name_, ": values reach ", max_weight_,
                                     " and are used as they are; hint: scale them to about 1 in "
                                     "the file"));
  }

 private:
  struct NumericColumn {
    bool seen = false;
    double most = 0;  // largest magnitude
  };
  const std::string name_;
  std::string first_bad_;  // its message; empty: none
  const Data& data_;
  const DataShape& shape_;
  int64_t rows_ = 0;
  std::array<int64_t, 2> labels_ = {};
  std::vector<uint64_t> missing_;  // the key of "no value", per field
  std::vector<bool> field_seen_;
  std::vector<ValueCount> values_;  // per field
  std::vector<NumericColumn> columns_;
  float max_weight_ = 0;
};

bool IsNotUtf8(absl::string_view text) { return !IsUtf8(text); }

// A warning that may hold for thousands of files. The text shows the first file and the number of
// further files.
class FirstOfMany {
 public:
  void Add(std::string text) {
    if (files_++ == 0) text_ = std::move(text);
  }
  void Say(std::vector<std::string>* warnings) const {
    if (files_ == 0) return;
    warnings->push_back(absl::StrCat(
        text_, files_ > 1 ? absl::StrCat("; so are ", files_ - 1, " more files") : ""));
  }

 private:
  std::string text_;
  int64_t files_ = 0;
};

// Warns of files that the job uses twice, even under different names, and of files that a wildcard
// skipped.
class FileCheck {
 public:
  template <typename Names>
  absl::Status See(const char* knob, const Names& names) {
    std::vector<std::string> hidden;
    TANDEM_ASSIGN_OR_RETURN(const auto files,
                            ExpandAllFiles(knob, {names.begin(), names.end()}, &hidden));
    for (const std::string& name : files) SeeFile(knob, name);
    for (const std::string& name : hidden) {
      said_[{knob, ""}].Add(
          absl::StrCat(knob, ": ", name, " is skipped, as wildcards skip names that begin with _"));
    }
    return absl::OkStatus();
  }

  void Say(std::vector<std::string>* warnings) const {
    for (const auto& [what, files] : said_) files.Say(warnings);
  }

 private:
  void SeeFile(const char* knob, const std::string& name) {
    struct stat info;
    if (stat(name.c_str(), &info) != 0) return;
    const auto [found, first] = seen_.try_emplace({info.st_dev, info.st_ino}, File{knob, name});
    if (first) return;
    const File& was = found->second;
    const std::string also = was.name == name ? "" : absl::StrCat(" (", was.name, ")");
    const std::string what = was.knob == knob           ? "count twice"
                             : was.knob == "data.train" ? "train the model and evaluate it"
                                                        : "choose the model and test it";
    said_[{knob, was.knob}].Add(
        absl::StrCat(knob, ": ", name, " is ", was.knob == knob ? "there twice" : "in ",
                     was.knob == knob ? "" : was.knob, also, ": its rows ", what));
  }

  struct File {
    std::string knob, name;
  };
  std::map<std::pair<std::string, std::string>, FirstOfMany> said_;  // by the two fields of the job
  std::map<std::pair<dev_t, ino_t>, File> seen_;
};

absl::Status CheckNames(const Data& data, DataReport* report) {
  FileCheck check;
  TANDEM_RETURN_IF_ERROR(check.See("data.train", data.train()));
  TANDEM_RETURN_IF_ERROR(check.See("data.validation.files", data.validation().files()));
  TANDEM_RETURN_IF_ERROR(check.See("data.test", data.test()));
  check.Say(&report->warnings);
  return absl::OkStatus();
}

// Checks files with one row a line. Run() reads every file once, up to a budget of bytes, and then
// warns and counts.
class DataCheck {
 public:
  DataCheck(const job::ResolvedJob& plan, const DataShape& shape, RowParser* parser,
            DataReport* report)
      : plan_(plan),
        parser_(parser),
        report_(report),
        bad_rows_(plan.job.data().max_bad_rows()),
        train_("data.train", plan, shape),
        validation_("data.validation", plan, shape),
        test_("data.test", plan, shape),
        validation_ids_("data.validation", shape.fields),
        test_ids_("data.test", shape.fields) {}

  // The order matters. The ids of the evaluation files are sampled first, so that each training row
  // can be compared with them while it is read. The training files come before the others because
  // their rows may also belong to the validation and test parts, and because the first of them
  // decides which label counts as 0. Warnings and CheckCounts come last, since they need the
  // totals.
  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(plan_, parser_));
    const Data& data = plan_.job.data();
    if (!parts.why_rows.empty()) {
      report_->warnings.push_back(
          absl::StrCat("data.train: ", parts.why_rows,
                       ", so every worker reads all files; hint: split them "
                       "into more files of about the same size, or unpack them"));
    }
    const NameList train(data.train().begin(), data.train().end()),
        test(data.test().begin(), data.test().end()),
        validation(data.validation().files().begin(), data.validation().files().end());
    if (!plan_.job.train().evaluate_only()) TANDEM_RETURN_IF_ERROR(SampleIds(parts));
    // Parsing this much takes about a second, so files below this size are checked completely.
    constexpr int64_t kCheckBytes = int64_t{64} << 20;
    const size_t files =
        parts.train.files.size() + parts.validation.files.size() + parts.test.files.size();
    bytes_ = kCheckBytes / static_cast<int64_t>(files) + 1;
    if (plan_.job.data().max_bad_rows() > 0) bytes_ = std::numeric_limits<int64_t>::max();
    TANDEM_RETURN_IF_ERROR(ReadTrainFiles(train, parts));
    TANDEM_RETURN_IF_ERROR(ReadOwnFiles(validation, parts.validation.files, &validation_));
    TANDEM_RETURN_IF_ERROR(ReadOwnFiles(test, parts.test.files, &test_));
    report_->bad_rows = bad_rows_.texts();
    Warn();
    return CheckCounts(parts);
  }

 private:
  using NameList = std::vector<std::string>;

  // Samples the ids of the evaluation files with a parser of its own. Errors in these files, and
  // their labels, are left to the later pass.
  absl::Status SampleIds(const RowParts& parts) {
    TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(plan_.job.data(), nullptr));
    if (!plan_.job.data().validation().files().empty()) {
      validation_ids_.Sample(parts.validation.files, parser.get());
    }
    if (!plan_.job.data().test().empty()) test_ids_.Sample(parts.test.files, parser.get());
    return absl::OkStatus();
  }

  // Reads files that belong to one part alone, if the job names such files.
  absl::Status ReadOwnFiles(const NameList& names, const NameList& files, PartObserver* part) {
    if (names.empty()) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(ReadFiles(names, files, kNoEnd, [part](const RowAt&) { return part; }));
    if (part->rows() > 0) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(part->CheckGoodRows());
    return absl::InvalidArgumentError(
        absl::StrCat(part->name(), ": there is no row in these files; hint: leave it out"));
  }

  // Reads the training files. Their rows may belong to any part.
  absl::Status ReadTrainFiles(const NameList& names, const RowParts& parts) {
    const bool validates =
        plan_.job.data().validation().files().empty() && !parts.validation.files.empty();
    const bool tests = plan_.job.data().test_fraction() > 0;
    int64_t end = parts.train.rows.end.row;
    if (validates) end = std::max(end, parts.validation.rows.end.row);
    if (tests) end = std::max(end, parts.test.rows.end.row);
    return ReadFiles(names, parts.train.files, end, [&](const RowAt& at) -> PartObserver* {
      if (parts.train.rows.Has(at)) return &train_;
      if (validates && parts.validation.rows.Has(at)) return &validation_;
      return tests && parts.test.rows.Has(at) ? &test_ : nullptr;
    });
  }

  // Reads the first `end` rows of `files` and gives each row to its observer, if it has one.
  // `names`: the names in the job that stand for the files.
  template <typename ObserverOf>
  absl::Status ReadFiles(const NameList& names, const NameList& files, int64_t end,
                         const ObserverOf& observer_of) {
    RowAt at;
    for (; at.file < files.size(); ++at.file) {
      TANDEM_ASSIGN_OR_RETURN(const auto file, parser_->Open(files[at.file]));
      const int64_t before = at.row;
      TANDEM_ASSIGN_OR_RETURN(const bool more, ReadFile(file.get(), end, observer_of, &at));
      if (at.row == before && more) TANDEM_RETURN_IF_ERROR(CheckEmpty(names, *file));
      if (!more) break;
    }
    return absl::OkStatus();
  }

  // Reads one file up to the budget of bytes. `at`: where the next row is. False if no further row
  // is needed.
  template <typename ObserverOf>
  absl::StatusOr<bool> ReadFile(RowFile* file, int64_t end, const ObserverOf& observer_of,
                                RowAt* at) {
    bool odd_text = false;
    for (int64_t left = bytes_; left > 0;) {
      if (at->row >= end) return false;
      absl::string_view line;
      TANDEM_ASSIGN_OR_RETURN(const bool more, file->Next(&line));
      if (!more) return true;
      at->offset = file->offset();
      PartObserver* const observer = observer_of(*at);
      ++at->row;
      if (observer == nullptr) continue;
      left -= static_cast<int64_t>(line.size()) + 1;
      if (const absl::Status parsed = file->Parse(line, &row_); !parsed.ok()) {
        TANDEM_RETURN_IF_ERROR(bad_rows_.Add(parsed));
        observer->SeeBad(parsed);
        continue;
      }
      See(observer);
      if (!odd_text && !IsUtf8(line)) odd_text = WarnOfText(*file);
    }
    read_all_ = false;
    return true;
  }

  void See(PartObserver* observer) {
    observer->See(row_, *parser_);
    if (observer != &train_) return;
    test_ids_.SeeTraining(row_, parser_->texts());
    validation_ids_.SeeTraining(row_, parser_->texts());
  }

  // Refuses a file without rows if the job names it. For files that a wildcard found there is only
  // a warning.
  absl::Status CheckEmpty(const NameList& names, const RowFile& file) {
    const std::string what = absl::StrCat(
        file.name(), ": ",
        file.first_line().empty() ? "the file is empty" : "the file has no rows below its header");
    if (IsNamed(names, file.name())) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ", expected rows; hint: remove it from the job"));
    }
    empty_.Add(what);
    return absl::OkStatus();
  }

  // Warns if the row that was parsed last has text in an unknown encoding in a column that the job
  // reads. True if it has.
  bool WarnOfText(const RowFile& file) {
    const std::string cell = parser_->ShownIf(IsNotUtf8);
    if (cell.empty()) return false;
    report_->warnings.push_back(absl::StrCat(
        file.name(), ":", file.line(), ": ", cell,
        ", which is not UTF-8; ids are made of the bytes, so all files must be in one encoding; "
        "hint: iconv -f LATIN1 -t UTF-8"));
    return true;
  }

  void Warn() {
    empty_.Say(&report_->warnings);
    for (const PartObserver* part : {&train_, &validation_, &test_}) {
      part->WarnOfLabels(&report_->warnings);
    }
    (train_.rows() > 0 ? train_ : test_).WarnOfColumns(&report_->warnings);
    if (read_all_ && train_.rows() > 0) WarnOfBatch(plan_, train_.rows(), &report_->warnings);
    for (const IdCheck* ids : {&validation_ids_, &test_ids_}) {
      ids->Warn(read_all_, &report_->warnings);
    }
    if (report_->bad_rows.empty()) return;
    report_->warnings.push_back(absl::StrCat(
        report_->bad_rows.size(), " bad rows are skipped; the first: ", report_->bad_rows[0]));
  }

  absl::Status CheckCounts(const RowParts& parts) {
    for (const PartObserver* part : {&train_, &validation_, &test_}) {
      TANDEM_RETURN_IF_ERROR(part->CheckGoodRows());
    }
    const double fraction = plan_.job.data().validation().fraction();
    if (fraction > 0 && (train_.rows() == 0 || validation_.rows() == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.validation.fraction ", fraction, " of ", train_.rows() + validation_.rows(),
          " rows leaves no ", train_.rows() == 0 ? "training" : "validation",
          " row; hint: change it or name data.validation.files"));
    }
    if (parts.train.files.empty()) return absl::OkStatus();  // the job only scores rows
    const int64_t enough = std::min<int64_t>(parts.train.rows.end.row, plan_.workers());
    TANDEM_ASSIGN_OR_RETURN(const int64_t rows, CountRows(parts.train.files, parser_, enough));
    return CheckWorkers(plan_, rows);
  }

  const job::ResolvedJob& plan_;
  RowParser* const parser_;
  DataReport* const report_;
  BadRows bad_rows_;
  PartObserver train_, validation_, test_;
  IdCheck validation_ids_, test_ids_;
  FirstOfMany empty_;  // files without rows that wildcards have found
  Row row_;
  int64_t bytes_ = 0;  // how many bytes of each file to parse
  bool read_all_ = true;
};

absl::Status CheckNcfData(const job::ResolvedJob& plan, DataReport* report) {
  if (plan.job.data().test_fraction() != 0) {
    return absl::InvalidArgumentError(
        "data.test_fraction does not go with format: NCF; hint: name "
        "data.negatives.test_negatives");
  }
  if (plan.job.data().score_only()) return LoadPairs(plan.job.data()).status();
  TANDEM_ASSIGN_OR_RETURN(const NcfEpochs epochs, LoadNcfEpochs(plan));
  TANDEM_RETURN_IF_ERROR(LoadRankingGroups(plan).status());
  WarnOfBatch(plan, epochs.rows(), &report->warnings);
  return CheckWorkers(plan, epochs.rows());
}

// Opens the cache of each file.
absl::Status CheckCaches(const Data& data) {
  if (data.cache().empty() || data.score_only()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesOfRows(data));
  for (const std::string& file : files) TANDEM_RETURN_IF_ERROR(parser->Open(file).status());
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckData(const job::ResolvedJob& given, DataReport* report) {
  DataReport ignored;
  job::ResolvedJob plan = given;
  // The job of an earlier run has the borders and sizes of that run.
  plan.job.mutable_data()->clear_border();
  plan.job.mutable_data()->clear_train_bytes();
  plan.job.mutable_data()->clear_cache();  // warnings are about texts
  TANDEM_RETURN_IF_ERROR(CheckServiceTraces(plan));
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan));
  if (plan.job.data().format() == Data::PROGRAM) return absl::OkStatus();  // there are no files
  if (report == nullptr) report = &ignored;
  if (!plan.job.train().evaluate_only()) {
    TANDEM_RETURN_IF_ERROR(CheckNames(plan.job.data(), report));
  }
  if (plan.job.data().format() == Data::NCF) return CheckNcfData(plan, report);
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(plan.job.data(), nullptr));
  TANDEM_RETURN_IF_ERROR(DataCheck(plan, shape, parser.get(), report).Run());
  return CheckCaches(given.job.data());
}

}  // namespace tandem::data
