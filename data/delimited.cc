// Delimited text with a column specification in the job.
#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/row.h"

namespace tandem {
namespace {

constexpr size_t kMaxColumns = 1 << 16;

class DelimitedParser final : public RowParser {
 public:
  explicit DelimitedParser(const Columns& columns)
      : columns_(columns),
        delimiter_(columns.delimiter().empty() ? '\t' : columns.delimiter()[0]),
        positive_(columns.positive().empty() ? "1" : columns.positive()) {
    for (const std::string& field : columns_.categorical()) hashes_.emplace_back(field);
  }

  bool has_header() const override { return columns_.header(); }

  absl::Status StartFile(absl::string_view first_line) override {
    TANDEM_ASSIGN_OR_RETURN(const size_t count, Split(first_line, {}));
    if (count > kMaxColumns) {
      return absl::InvalidArgumentError(
          absl::StrCat("the first line has ", count, " columns, expected at most ", kMaxColumns));
    }
    cells_.resize(count);
    TANDEM_RETURN_IF_ERROR(Split(first_line, absl::MakeSpan(cells_)).status());
    TANDEM_ASSIGN_OR_RETURN(label_, Find("label", columns_.label()));
    TANDEM_RETURN_IF_ERROR(FindAll("numeric", columns_.numeric(), &numeric_));
    return FindAll("categorical", columns_.categorical(), &categorical_);
  }

  absl::Status Parse(absl::string_view line, Row* row) override {
    TANDEM_ASSIGN_OR_RETURN(const size_t count, Split(line, absl::MakeSpan(cells_)));
    if (count != cells_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the row has ", count, " columns, expected ", cells_.size(), " as in the file's ",
          columns_.header() ? "header" : "first row", " (separated by ",
          Quote(absl::string_view(&delimiter_, 1)), "); hint: see data.columns.delimiter"));
    }
    TANDEM_RETURN_IF_ERROR(ParseLabel(cells_[label_], row));
    row->weights.clear();
    row->keys.resize(categorical_.size());
    for (size_t f = 0; f < categorical_.size(); ++f) {
      const absl::string_view cell = cells_[categorical_[f]];
      row->keys[f] = IsMissing(cell) ? hashes_[f].missing() : hashes_[f].Key(cell);
    }
    return ParseNumbers(row);
  }

 private:
  // Quotes mean something where commas separate, and there only.
  absl::StatusOr<size_t> Split(absl::string_view line, absl::Span<absl::string_view> cells) {
    if (delimiter_ != ',' || line.find('"') == absl::string_view::npos) {
      return SplitCells(line, delimiter_, cells);
    }
    return SplitQuotedCells(line, delimiter_, cells, &texts_);
  }

  bool IsMissing(absl::string_view cell) const {
    return cell.empty() || cell == columns_.missing();
  }

  // Where the column `name` is, judged by the first line, which is in cells_.
  absl::StatusOr<size_t> Find(absl::string_view role, absl::string_view name) const {
    if (columns_.header()) {
      for (size_t i = 0; i < cells_.size(); ++i) {
        if (cells_[i] == name) return i;
      }
      return absl::InvalidArgumentError(
          absl::StrCat("the header has no column ", Quote(name), " (data.columns.", role,
                       "); it has ", ShownHeader(), "; hint: names are compared byte by byte"));
    }
    uint64_t number = 0;
    if (!ParseUnsigned(name, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.columns.", role, " is ", Quote(name),
          ", expected a column number from 0 because the file has no header; hint: set "
          "data.columns.header: true if its first line names the columns"));
    }
    if (number >= cells_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the row has ", cells_.size(), " columns, expected at least ", number,
                       " + 1 (data.columns.", role,
                       "); hint: columns are counted from 0, see data.columns.delimiter"));
    }
    return number;
  }

  template <typename Names>
  absl::Status FindAll(absl::string_view role, const Names& names, std::vector<size_t>* at) const {
    at->clear();
    for (const std::string& name : names) {
      TANDEM_ASSIGN_OR_RETURN(const size_t column, Find(role, name));
      at->push_back(column);
    }
    return absl::OkStatus();
  }

  std::string ShownHeader() const {
    constexpr size_t kShown = 8;
    std::vector<std::string> names;
    for (size_t i = 0; i < cells_.size() && i < kShown; ++i) names.push_back(Quote(cells_[i]));
    if (cells_.size() > kShown) names.push_back(absl::StrCat(cells_.size() - kShown, " more"));
    return absl::StrJoin(names, ", ");
  }

  absl::Status ParseLabel(absl::string_view cell, Row* row) {
    row->label = cell == positive_ ? 1.0f : 0.0f;
    if (row->label == 1.0f || (cell == negative_ && !cell.empty())) return absl::OkStatus();
    if (negative_.empty() && !cell.empty()) {
      negative_ = std::string(cell);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the label is ", Quote(cell), ", expected ", Quote(positive_), " (which counts as 1)",
        negative_.empty() ? "" : absl::StrCat(" or ", Quote(negative_)),
        "; hint: labels must have two values; data.columns.positive names the one that counts as "
        "1"));
  }

  absl::Status ParseNumbers(Row* row) {
    row->numbers.resize(numeric_.size());
    for (size_t i = 0; i < numeric_.size(); ++i) {
      const absl::string_view cell = cells_[numeric_[i]];
      float x = 0;
      if (!IsMissing(cell) && !ParseNumber(cell, &x)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "column ", Quote(columns_.numeric(static_cast<int>(i))), " is ", Quote(cell),
            ", expected a number or an empty cell; hint: "
            "data.columns.missing names the text of a missing value"));
      }
      row->numbers[i] = columns_.log_transform() ? LogTransform(x) : x;
    }
    return absl::OkStatus();
  }

  const Columns columns_;
  const char delimiter_;
  const std::string positive_;
  std::string negative_;                  // the other label, once seen
  std::vector<FieldHash> hashes_;         // per categorical column
  std::vector<absl::string_view> cells_;  // of the line at hand; as many as the first line has
  std::deque<std::string> texts_;         // of cells that hold quotes
  size_t label_ = 0;                      // column numbers
  std::vector<size_t> numeric_, categorical_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowParser>> NewDelimitedParser(const Columns& columns) {
  if (columns.delimiter().size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.columns.delimiter is ", Quote(columns.delimiter()),
                     ", expected one character; hint: a tab is \"\\t\""));
  }
  if (columns.label().empty()) {
    return absl::InvalidArgumentError(
        "data.columns.label is not set, expected the name or number of a column");
  }
  return std::make_unique<DelimitedParser>(columns);
}

}  // namespace tandem
