// Delimited text with a column specification in the job.
#include <algorithm>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/labels.h"
#include "data/row.h"
#include "data/transforms.h"
#include "job/message_text.h"

namespace tandem::data {
namespace {

constexpr size_t kMaxColumns = 1 << 16;

using Texts = std::vector<std::string>;

bool Contains(const Texts& texts, absl::string_view text) {
  for (const std::string& each : texts) {
    if (each == text) return true;
  }
  return false;
}

// One column of the job.
struct ColumnPlace {
  std::string name;
  Texts missing;  // beside the empty cell
  size_t at = 0;  // column number in the file at hand

  bool IsMissing(absl::string_view cell) const { return cell.empty() || Contains(missing, cell); }
};

ColumnPlace PlaceOf(const Columns& columns, const std::string& name) {
  ColumnPlace place;
  place.name = name;
  place.missing.assign(columns.missing().begin(), columns.missing().end());
  const Column rule = RuleOf(columns, name);
  place.missing.insert(place.missing.end(), rule.missing().begin(), rule.missing().end());
  return place;
}

LabelMap DelimitedLabels(const Columns& columns) {
  Texts positive(columns.positive().begin(), columns.positive().end());
  if (positive.empty()) positive = {"1", "True", "true", "TRUE"};
  return LabelMap(std::move(positive), {columns.negative().begin(), columns.negative().end()});
}

class DelimitedParser final : public RowParser {
 public:
  explicit DelimitedParser(const Columns& columns)
      : columns_(columns),
        delimiter_(columns.delimiter().empty() ? '\t' : columns.delimiter()[0]),
        labels_(DelimitedLabels(columns)),
        label_(PlaceOf(columns, columns.label())) {
    for (const std::string& name : columns_.numeric()) {
      numeric_.push_back(PlaceOf(columns, name));
      transforms_.emplace_back(columns, RuleOf(columns, name));
    }
    values_.resize(numeric_.size());
    for (const std::string& name : columns_.categorical()) {
      categorical_.push_back(PlaceOf(columns, name));
      hashes_.emplace_back(name);
    }
  }

  // From here on numbers are standardised where the job says so.
  absl::Status SetStatistics(const DataStatistics& statistics) {
    for (size_t i = 0; i < transforms_.size(); ++i) {
      if (!transforms_[i].standardises()) continue;
      const auto found =
          std::find_if(statistics.column().begin(), statistics.column().end(),
                       [&](const ColumnStatistics& c) { return c.name() == numeric_[i].name; });
      if (found == statistics.column().end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("data.statistics has no column ", Quote(numeric_[i].name),
                         ", which is standardised; hint: leave data.statistics out of the job"));
      }
      transforms_[i].set_statistics(*found);
    }
    return absl::OkStatus();
  }

  std::string LearnedNegative() const override { return labels_.Learned(); }

  absl::Span<const double> values() const override { return values_; }

  std::string ShownIf(bool (*holds)(absl::string_view cell)) const override {
    const auto shown = [](const ColumnPlace& place, absl::string_view cell) {
      return absl::StrCat("column ", Quote(place.name), " is ", Quote(cell));
    };
    for (const std::vector<ColumnPlace>* places : {&categorical_, &numeric_}) {
      for (const ColumnPlace& place : *places) {
        if (holds(cells_[place.at])) return shown(place, cells_[place.at]);
      }
    }
    return holds(cells_[label_.at]) ? shown(label_, cells_[label_.at]) : "";
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
    TANDEM_RETURN_IF_ERROR(Find("label", &label_));
    for (ColumnPlace& place : numeric_) TANDEM_RETURN_IF_ERROR(Find("numeric", &place));
    for (ColumnPlace& place : categorical_) TANDEM_RETURN_IF_ERROR(Find("categorical", &place));
    return absl::OkStatus();
  }

  absl::Status Parse(absl::string_view line, Row* row) override {
    TANDEM_ASSIGN_OR_RETURN(const size_t count, Split(line, absl::MakeSpan(cells_)));
    if (count != cells_.size()) return WrongCount(line, count);
    TANDEM_RETURN_IF_ERROR(ParseLabel(cells_[label_.at], row));
    row->weights.clear();
    row->keys.resize(categorical_.size());
    for (size_t f = 0; f < categorical_.size(); ++f) {
      const absl::string_view cell = cells_[categorical_[f].at];
      row->keys[f] = categorical_[f].IsMissing(cell) ? hashes_[f].missing() : hashes_[f].Key(cell);
    }
    return ParseNumbers(row);
  }

 private:
  // Quotes mean something where commas or semicolons separate, and there only.
  absl::StatusOr<size_t> Split(absl::string_view line, absl::Span<absl::string_view> cells) {
    const bool quotes = delimiter_ == ',' || delimiter_ == ';';
    if (quotes && line.find('"') != absl::string_view::npos) {
      return SplitQuotedCells(line, delimiter_, columns_.trim(), cells, &texts_);
    }
    const size_t count = SplitCells(line, delimiter_, cells);
    if (columns_.trim()) {
      for (size_t i = 0; i < std::min(count, cells.size()); ++i) cells[i] = Trimmed(cells[i]);
    }
    return count;
  }

  absl::Status WrongCount(absl::string_view line, size_t count) const {
    const bool blank_before_quote = !columns_.trim() && line.find(" \"") != absl::string_view::npos;
    return absl::InvalidArgumentError(absl::StrCat(
        "the row has ", count, " columns, expected ", cells_.size(), " as in the file's ",
        columns_.header() ? "header" : "first row", " (separated by ",
        Quote(absl::string_view(&delimiter_, 1)), "); hint: see data.columns.delimiter",
        blank_before_quote ? ", and data.columns.trim: true for quotes after a blank" : ""));
  }

  // Where the column of `place` is, judged by the first line, which is in cells_.
  absl::Status Find(absl::string_view role, ColumnPlace* place) const {
    if (columns_.header()) return FindName(role, place);
    uint64_t number = 0;
    if (!ParseUnsigned(place->name, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.columns.", role, " is ", Quote(place->name),
          ", expected a column number from 0 because the file has no header; hint: set "
          "data.columns.header: true if its first line names the columns"));
    }
    if (number >= cells_.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the row has ", cells_.size(), " columns, expected at least ", number,
          " + 1 (data.columns.", role, "); hint: columns are counted from 0", OtherDelimiter()));
    }
    place->at = number;
    return absl::OkStatus();
  }

  absl::Status FindName(absl::string_view role, ColumnPlace* place) const {
    size_t found = 0, blanks = 0;
    for (size_t i = cells_.size(); i-- > 0;) {
      if (Trimmed(cells_[i]) == place->name) ++blanks;
      if (cells_[i] != place->name) continue;
      place->at = i;
      ++found;
    }
    if (found == 1) return absl::OkStatus();
    if (found > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the header has ", found, " columns ", Quote(place->name), " (data.columns.", role,
          "), expected one; hint: give the columns names of their own in the file"));
    }
    const auto nearest = job::Nearest(place->name, {cells_.begin(), cells_.end()});
    if (blanks == 0 && nearest.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the header has no column ",
                                                     Quote(place->name), " (data.columns.", role,
                                                     "); did you mean ", Quote(*nearest), "?"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the header has no column ", Quote(place->name), " (data.columns.", role,
                     "); it has ", ShownHeader(), "; hint: ",
                     blanks > 0 ? "data.columns.trim: true takes the blanks off"
                                : "names are compared byte by byte",
                     OtherDelimiter()));
  }

  // A first line that is one cell has most likely another delimiter than the job says: names one
  // that is in it.
  std::string OtherDelimiter() const {
    if (cells_.size() == 1) {
      for (const char other : {',', ';', '\t', '|'}) {
        if (!absl::StrContains(cells_[0], other)) continue;
        const std::string text = other == '\t' ? "\\t" : std::string(1, other);
        return absl::StrCat("; is it data.columns.delimiter: \"", text, "\"?");
      }
    }
    return ", see data.columns.delimiter";
  }

  std::string ShownHeader() const {
    constexpr size_t kShown = 8;
    Texts names;
    for (size_t i = 0; i < cells_.size() && i < kShown; ++i) names.push_back(Quote(cells_[i]));
    if (cells_.size() > kShown) names.push_back(absl::StrCat(cells_.size() - kShown, " more"));
    return absl::StrJoin(names, ", ");
  }

  absl::Status ParseLabel(absl::string_view cell, Row* row) {
    if (labels_.Read(cell, &row->label)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the label in column ", Quote(label_.name), " is ", Quote(cell), ", expected ",
        labels_.Expected(), "; hint: ",
        Trimmed(cell).size() < cell.size()
            ? "data.columns.trim: true takes the blanks off"
            : "data.columns.positive lists the labels that count as 1, data.columns.negative "
              "those that count as 0"));
  }

  absl::Status ParseNumbers(Row* row) {
    row->numbers.resize(numeric_.size());
    for (size_t i = 0; i < numeric_.size(); ++i) {
      const absl::string_view cell = cells_[numeric_[i].at];
      double x = std::numeric_limits<double>::quiet_NaN();
      if (!numeric_[i].IsMissing(cell) && !ParseNumber(cell, &x)) return NotANumber(i, cell);
      values_[i] = transforms_[i].Unscaled(x);
      row->numbers[i] = transforms_[i].Scaled(values_[i]);
    }
    return absl::OkStatus();
  }

  absl::Status NotANumber(size_t column, absl::string_view cell) const {
    float ignored = 0;
    return absl::InvalidArgumentError(
        absl::StrCat("column ", Quote(numeric_[column].name), " is ", Quote(cell),
                     ", expected a number or an empty cell; hint: ",
                     ParseNumber(Trimmed(cell), &ignored) || Trimmed(cell).empty()
                         ? "data.columns.trim: true takes the blanks off"
                         : "data.columns.missing lists the texts of a missing value"));
  }

  const Columns columns_;
  const char delimiter_;
  LabelMap labels_;
  ColumnPlace label_;
  std::vector<ColumnPlace> numeric_, categorical_;
  std::vector<NumberTransform> transforms_;  // per numeric column
  std::vector<double> values_;               // likewise, of the row last parsed, before the scale
  std::vector<FieldHash> hashes_;            // per categorical column
  std::vector<absl::string_view> cells_;     // of the line at hand; as many as the first line has
  std::deque<std::string> texts_;            // of cells that hold quotes
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowParser>> NewDelimitedParser(const Columns& columns,
                                                              const DataStatistics* statistics) {
  if (columns.delimiter().size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.columns.delimiter is ", Quote(columns.delimiter()),
                     ", expected one character; hint: a tab is \"\\t\""));
  }
  if (columns.label().empty()) {
    return absl::InvalidArgumentError(
        "data.columns.label is not set, expected the name or number of a column");
  }
  auto parser = std::make_unique<DelimitedParser>(columns);
  if (statistics != nullptr) TANDEM_RETURN_IF_ERROR(parser->SetStatistics(*statistics));
  return parser;
}

}  // namespace tandem::data
