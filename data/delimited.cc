// The parser of rows whose columns the job describes: delimited text, or cells with types.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/labels.h"
#include "data/parquet_rows.h"
#include "data/row.h"
#include "data/text_rows.h"
#include "data/transforms.h"
#include "data/typed_cells.h"
#include "job/message_text.h"
#include "job/row_shape.h"

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

// One column that the job reads.
struct ColumnPlace {
  std::string name;
  Column rule;
  Texts missing;  // in addition to the empty cell
  size_t at = 0;  // number of the column in the current file

  bool IsMissing(absl::string_view cell) const { return cell.empty() || Contains(missing, cell); }
};

ColumnPlace PlaceOf(const Columns& columns, const std::string& name) {
  ColumnPlace place;
  place.name = name;
  place.missing.assign(columns.missing().begin(), columns.missing().end());
  place.rule = RuleOf(columns, name);
  place.missing.insert(place.missing.end(), place.rule.missing().begin(),
                       place.rule.missing().end());
  return place;
}

// Parses a date into the number of units (days or seconds) since 1970.
bool ParseDate(const Column& rule, absl::string_view cell, double* value) {
  absl::Time time;
  std::string ignored;
  if (!absl::ParseTime(job::DateForm(rule), cell, &time, &ignored)) return false;
  if (time == absl::InfiniteFuture() || time == absl::InfinitePast()) return false;
  *value =
      absl::FDivDuration(time - absl::UnixEpoch(),
                         rule.date_unit() == Column::SECONDS ? absl::Seconds(1) : absl::Hours(24));
  return true;
}

// Parses a number with a decimal comma.
bool ParseWithComma(absl::string_view cell, double* value) {
  if (absl::StrContains(cell, '.')) return false;
  return ParseNumber(absl::StrReplaceAll(cell, {{",", "."}}), value);
}

bool HasDigit(absl::string_view text) {
  return std::any_of(text.begin(), text.end(), absl::ascii_isdigit);
}

// Whether the text is a number whose digits stand in groups of three, such as 1,234,567.50.
bool HasThousandCommas(absl::string_view text) {
  const size_t comma = text.find(',');
  if (comma == absl::string_view::npos || comma == 0 || comma > 3) return false;
  const std::vector<absl::string_view> groups =
      absl::StrSplit(text.substr(comma + 1, text.find('.') - comma - 1), ',');
  double ignored = 0;
  return std::all_of(groups.begin(), groups.end(),
                     [](absl::string_view group) { return group.size() == 3; }) &&
         ParseNumber(absl::StrReplaceAll(text, {{",", ""}}), &ignored);
}

// The same, or with points between the thousands, such as 1.234.567,50.
bool HasThousands(absl::string_view text) {
  return HasThousandCommas(text) ||
         HasThousandCommas(absl::StrReplaceAll(text, {{",", "."}, {".", ","}}));
}

// Whether digits are on both sides of a sign, as in dates and times.
bool HasDateSign(absl::string_view text) {
  const auto digit = [text](size_t at) {
    return at < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[at]));
  };
  size_t at = text.find_first_of("-/:");
  while (at != absl::string_view::npos && !(at > 0 && digit(at - 1) && digit(at + 1))) {
    at = text.find_first_of("-/:", at + 1);
  }
  return at != absl::string_view::npos;
}

LabelMap DelimitedLabels(Columns columns) {
  job::FillLabels(&columns);
  const auto texts = [](const auto& list) { return Texts(list.begin(), list.end()); };
  return LabelMap(texts(columns.positive()), texts(columns.negative()), {},
                  texts(columns.missing()));
}

class ColumnsParser final : public RowParser {
 public:
  // `typed`: rows are cells with types, else text.
  ColumnsParser(const Columns& columns, std::vector<NumberTransform> transforms, bool typed,
                bool labels_optional, int64_t trained_columns)
      : columns_(columns),
        typed_(typed),
        labels_optional_(labels_optional),
        trained_columns_(static_cast<size_t>(trained_columns)),
        delimiter_(columns.delimiter().empty() ? "\t" : columns.delimiter()),
        quotes_(!typed && columns.quotes() != Columns::NONE),
        labels_(DelimitedLabels(columns)),
        label_(PlaceOf(columns, columns.label())),
        transforms_(std::move(transforms)) {
    for (const std::string& name : columns_.numeric()) {
      numeric_.push_back(PlaceOf(columns, name));
    }
    values_.resize(numeric_.size());
    for (const std::string& name : columns_.categorical()) {
      categorical_.push_back(PlaceOf(columns, name));
      hashes_.emplace_back(name);
      bags_ |= job::HasManyIds(categorical_.back().rule);
      weighted_ |= categorical_.back().rule.pooling() == Column::MEAN;
    }
    if (typed_) PlaceTyped();
  }

  absl::StatusOr<std::unique_ptr<RowFile>> Open(const std::string& path) override {
    return typed_ ? OpenParquet(path, typed_columns_, this) : OpenText(path, this);
  }

  std::string LearnedNegative() const override { return labels_.Learned(); }
  bool Learns() const override { return labels_.Learns(); }
  void LearnNegative(absl::string_view label) override {
    at_first_row_ = false;  // the other parser has read it
    float ignored = 0;
    if (!label.empty()) labels_.Read(label, &ignored);
  }

  absl::Span<const double> values() const override { return values_; }
  absl::Span<const absl::string_view> texts() const override { return key_texts_; }

  std::string ShownIf(bool (*holds)(absl::string_view cell)) const override {
    const auto shown = [](const ColumnPlace& place, absl::string_view cell) {
      return absl::StrCat("column ", Quote(place.name), " is ", Quote(cell));
    };
    for (const std::vector<ColumnPlace>* places : {&categorical_, &numeric_}) {
      for (const ColumnPlace& place : *places) {
        if (holds(cells_[place.at])) return shown(place, cells_[place.at]);
      }
    }
    const bool label = !without_label_ && holds(cells_[label_.at]);
    return label ? shown(label_, cells_[label_.at]) : "";
  }

  bool has_header() const override { return !typed_ && columns_.header(); }
  size_t columns() const override { return cells_.size(); }

  bool spans_lines() const override { return quotes_; }
  bool EndsInQuotes(absl::string_view line, bool inside) const override {
    return quotes_ && data::EndsInQuotes(line, delimiter_, columns_.trim(), inside);
  }

  // A line that consists of delimiters is a row whose cells are all empty.
  bool IsRow(absl::string_view line) const override {
    return !Trimmed(line).empty() || absl::StrContains(line, delimiter_);
  }

  absl::Status StartFile(absl::string_view first_line) override {
    if (typed_) return absl::OkStatus();  // the columns were found when it was opened
    at_first_row_ = true;
    TANDEM_ASSIGN_OR_RETURN(const size_t count, Split(first_line, {}));
    if (count > kMaxColumns) {
      return absl::InvalidArgumentError(
          absl::StrCat("the first line has ", count, " columns, expected at most ", kMaxColumns));
    }
    cells_.resize(count);
    TANDEM_RETURN_IF_ERROR(Split(first_line, absl::MakeSpan(cells_)).status());
    TANDEM_RETURN_IF_ERROR(CheckCount());
    without_label_ = labels_optional_ && LacksLabel();
    if (!without_label_) TANDEM_RETURN_IF_ERROR(Find("label", &label_));
    for (ColumnPlace& place : numeric_) TANDEM_RETURN_IF_ERROR(Find("numeric", &place));
    for (ColumnPlace& place : categorical_) TANDEM_RETURN_IF_ERROR(Find("categorical", &place));
    return absl::OkStatus();
  }

  absl::Status Parse(absl::string_view line, Row* row) override {
    if (typed_) {
      TakeTyped(line);
    } else {
      TANDEM_ASSIGN_OR_RETURN(const size_t count, Split(line, absl::MakeSpan(cells_)));
      if (count != cells_.size()) return WrongCount(line, count);
    }
    TANDEM_RETURN_IF_ERROR(ParseLabel(row));
    TANDEM_RETURN_IF_ERROR(ParseKeys(row));
    TANDEM_RETURN_IF_ERROR(ParseNumbers(row));
    at_first_row_ = false;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<size_t> Split(absl::string_view line, absl::Span<absl::string_view> cells) {
    if (quotes_ && line.find('"') != absl::string_view::npos) {
      return SplitQuotedCells(line, delimiter_, columns_.trim(), cells, &texts_);
    }
    const size_t count = SplitCells(line, delimiter_, cells);
    if (columns_.trim()) {
      for (size_t i = 0; i < std::min(count, cells.size()); ++i) cells[i] = Trimmed(cells[i]);
    }
    return count;
  }

  // ---- cells with types ----

  // A row has the cells of the label, the numbers and the ids, in this order.
  void PlaceTyped() {
    using Role = ParquetColumn::Role;
    const auto add = [this](ColumnPlace* place, Role role) {
      place->at = typed_columns_.size();
      const bool splits = !place->rule.separator().empty();
      const bool dated = !place->rule.date().empty();
      typed_columns_.push_back(
          {place->name, role, splits, dated, role == Role::kLabel && labels_optional_});
    };
    without_label_ = label_.name.empty();
    if (!without_label_) add(&label_, Role::kLabel);
    for (ColumnPlace& place : numeric_) add(&place, Role::kNumber);
    for (ColumnPlace& place : categorical_) {
      add(&place, job::HasManyIds(place.rule) ? Role::kIds : Role::kId);
    }
    typed_cells_.resize(typed_columns_.size());
    cells_.resize(typed_columns_.size());
  }

  void TakeTyped(absl::string_view row) {
    for (size_t i = 0; i < typed_cells_.size(); ++i) {
      TypedCell& cell = typed_cells_[i];
      TakeCell(&row, &cell);
      if (typed_columns_[i].role == ParquetColumn::Role::kNumber) continue;
      cells_[i] = cell.kind == TypedCell::Kind::kList ? "" : cell.Text(&cell.owned);
    }
  }

  // Reads the number of a cell; NaN if it is missing. False if it is none.
  bool ReadTyped(const ColumnPlace& place, TypedCell* cell, double* x) {
    if (cell->IsMissing()) return true;
    const bool date = !place.rule.date().empty() && cell->kind == TypedCell::Kind::kInteger;
    if (cell->kind == TypedCell::Kind::kText || date) {
      const absl::string_view text = cell->Text(&cell->owned);
      return place.IsMissing(text) || ReadNumber(place.rule, text, x);
    }
    *x = cell->Number();
    if (cell->kind == TypedCell::Kind::kTime) {
      constexpr double kSecondsOfDay = 86400;
      if (place.rule.date_unit() != Column::SECONDS) *x /= kSecondsOfDay;
    } else if (!place.missing.empty() && place.IsMissing(cell->Text(&cell->owned))) {
      *x = std::numeric_limits<double>::quiet_NaN();
    }
    return !std::isinf(*x);
  }

  // The text of a cell for a message.
  absl::string_view ShownCell(const ColumnPlace& place) {
    if (!typed_) return cells_[place.at];
    TypedCell& cell = typed_cells_[place.at];
    return cell.kind == TypedCell::Kind::kTime ? "a time" : cell.Text(&cell.owned);
  }

  // ---- cells of text ----

  absl::Status WrongCount(absl::string_view line, size_t count) const {
    const bool blank_before_quote = !columns_.trim() && line.find(" \"") != absl::string_view::npos;
    return absl::InvalidArgumentError(absl::StrCat(
        "the row has ", count, " columns, expected ", cells_.size(), " as in the file's ",
        columns_.header() ? "header" : "first row", " (separated by ", Quote(delimiter_),
        "); hint: see data.columns.delimiter",
        blank_before_quote ? ", and data.columns.trim: true for quotes after a blank" : ""));
  }

  bool CountsColumns() const {
    return labels_optional_ && trained_columns_ > 0 && !columns_.header() &&
           !columns_.label().empty();
  }

  // Refuses a file to score that has other columns than the training files. Its first line is in
  // cells_.
  absl::Status CheckCount() const {
    const size_t count = cells_.size();
    if (!CountsColumns() || count == trained_columns_ || count + 1 == trained_columns_) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the row has ", count, " columns, expected ", trained_columns_,
        " as in the training data, or ", trained_columns_ - 1,
        " without a label; hint: columns are told apart by their numbers", OtherDelimiter()));
  }

  // Whether the file, whose first line is in cells_, has no label column.
  bool LacksLabel() const {
    if (columns_.label().empty()) return true;
    if (columns_.header()) {
      return std::none_of(cells_.begin(), cells_.end(), [&](absl::string_view cell) {
        return Trimmed(cell) == columns_.label();
      });
    }
    if (trained_columns_ > 0) return cells_.size() < trained_columns_;
    uint64_t last = 0;  // the highest number of an input column
    for (const std::vector<ColumnPlace>* places : {&numeric_, &categorical_}) {
      for (const ColumnPlace& place : *places) last = std::max(last, NumberOf(place));
    }
    return cells_.size() == std::max(last, NumberOf(label_));
  }

  static uint64_t NumberOf(const ColumnPlace& place) {
    uint64_t number = 0;
    return ParseUnsigned(place.name, &number) ? number : 0;
  }

  // Finds the column of `place` by the first line of the file, which is in cells_.
  absl::Status Find(absl::string_view role, ColumnPlace* place) const {
    if (columns_.header()) return FindName(role, place);
    uint64_t number = 0;
    if (!ParseUnsigned(place->name, &number)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data.columns.", role, " is ", Quote(place->name),
          ", expected a column number from 0 because the file has no header; hint: set "
          "data.columns.header: true if its first line names the columns"));
    }
    if (without_label_ && !columns_.label().empty() && number > NumberOf(label_)) --number;
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
    double ignored = 0;
    const bool is_row = std::any_of(cells_.begin(), cells_.end(), [&](absl::string_view cell) {
      return ParseNumber(Trimmed(cell), &ignored);
    });
    const auto nearest = job::Nearest(place->name, {cells_.begin(), cells_.end()});
    if (blanks == 0 && !is_row && nearest.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("the header has no column ",
                                                     Quote(place->name), " (data.columns.", role,
                                                     "); did you mean ", Quote(*nearest), "?"));
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "the header has no column ", Quote(place->name), " (data.columns.", role, "); it has ",
        ShownHeader(), "; hint: ",
        blanks > 0 ? "data.columns.trim: true takes the blanks off"
        : is_row   ? "is it a row? Without data.columns.header columns are numbers from 0"
                   : "names are compared byte by byte",
        OtherDelimiter()));
  }

  // A hint for a first line that is a single cell. The file probably has another delimiter than the
  // job; the hint suggests one that is in the line.
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

  absl::Status ParseLabel(Row* row) {
    row->label = kNoLabel;
    if (without_label_) return absl::OkStatus();
    const absl::string_view cell = cells_[label_.at];
    if (labels_optional_ && labels_.IsMissing(Trimmed(cell))) return absl::OkStatus();
    if (labels_.Read(cell, &row->label)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the label in column ", Quote(label_.name), " is ", Quote(cell), ", expected ",
        labels_.Expected(), "; hint: ",
        !Trimmed(cell).empty() && Trimmed(cell).size() < cell.size()
            ? "data.columns.trim: true takes the blanks off"
        : MayBeHeader(cell) ? kHeaderHint
        : IsHeaderAgain()   ? "this line repeats the header; remove it (were files put together?)"
                            : labels_.Hint(Trimmed(cell))));
  }

  // Whether each cell that the job reads is the name of its column.
  bool IsHeaderAgain() const {
    const auto names_itself = [this](const ColumnPlace& c) { return cells_[c.at] == c.name; };
    return has_header() && names_itself(label_) &&
           std::all_of(numeric_.begin(), numeric_.end(), names_itself) &&
           std::all_of(categorical_.begin(), categorical_.end(), names_itself);
  }

  // Whether the row may be a header that the job does not mention.
  bool MayBeHeader(absl::string_view cell) const {
    return at_first_row_ && !columns_.header() && !cell.empty() && !HasDigit(cell);
  }

  absl::Status ParseKeys(Row* row) {
    row->keys.clear();
    row->weights.clear();
    row->offsets.assign(bags_ ? 1 : 0, 0);
    key_texts_.clear();
    for (size_t f = 0; f < categorical_.size(); ++f) {
      const absl::string_view cell = cells_[categorical_[f].at];
      if (job::HasManyIds(categorical_[f].rule)) {
        TANDEM_RETURN_IF_ERROR(ParseBag(f, cell, row));
      } else {
        TANDEM_RETURN_IF_ERROR(AddKey(f, cell, row));
      }
      if (!bags_) continue;
      const size_t begin = row->offsets.back(), ids = row->keys.size() - begin;
      const bool mean = categorical_[f].rule.pooling() == Column::MEAN;
      if (weighted_) row->weights.resize(row->keys.size(), mean ? 1.0f / ids : 1.0f);
      row->offsets.push_back(static_cast<uint32_t>(row->keys.size()));
    }
    return absl::OkStatus();
  }

  absl::Status AddKey(size_t f, absl::string_view text, Row* row) {
    const bool missing = categorical_[f].IsMissing(text);
    uint64_t key = hashes_[f].missing();
    if (!missing && categorical_[f].rule.ids() == Column::RAW) {
      if (!ParseRawId(text, &key)) {
        return absl::InvalidArgumentError(
            absl::StrCat("column ", Quote(categorical_[f].name), " is ", Quote(text),
                         ", expected a whole number of 64 bits; hint: ids: HASHED takes any text"));
      }
    } else if (!missing) {
      key = hashes_[f].Key(text);
    }
    row->keys.push_back(key);
    key_texts_.push_back(missing ? absl::string_view() : text);
    return absl::OkStatus();
  }

  // Adds an id for each value in the cell; for a cell without values, the id of a missing value.
  absl::Status ParseBag(size_t f, absl::string_view cell, Row* row) {
    const ColumnPlace& place = categorical_[f];
    const size_t begin = row->keys.size();
    const auto add = [&](absl::string_view text) {
      return place.IsMissing(text) ? absl::OkStatus() : AddKey(f, text, row);
    };
    TypedCell* const list = typed_ && typed_cells_[place.at].kind == TypedCell::Kind::kList
                                ? &typed_cells_[place.at]
                                : nullptr;
    if (list != nullptr) {
      for (TypedCell& item : list->items) {
        TANDEM_RETURN_IF_ERROR(add(item.Text(&item.owned)));
      }
    } else if (!place.IsMissing(cell)) {
      for (absl::string_view text : absl::StrSplit(cell, place.rule.separator())) {
        TANDEM_RETURN_IF_ERROR(add(columns_.trim() ? Trimmed(text) : text));
      }
    }
    const size_t ids = row->keys.size() - begin;
    if (ids == 0) TANDEM_RETURN_IF_ERROR(AddKey(f, "", row));
    if (place.rule.max_ids() == 0 || ids <= static_cast<size_t>(place.rule.max_ids())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "column ", Quote(place.name), " has ", ids, " values",
        list != nullptr ? "" : absl::StrCat(" in ", Quote(cell)), ", expected at most ",
        place.rule.max_ids(), "; hint: raise max_ids of its `column`"));
  }

  absl::Status ParseNumbers(Row* row) {
    row->numbers.resize(numeric_.size());
    for (size_t i = 0; i < numeric_.size(); ++i) {
      const ColumnPlace& place = numeric_[i];
      double x = std::numeric_limits<double>::quiet_NaN();
      const bool read = typed_ ? ReadTyped(place, &typed_cells_[place.at], &x)
                               : place.IsMissing(cells_[place.at]) ||
                                     ReadNumber(place.rule, cells_[place.at], &x);
      if (!read) return NotANumber(place, ShownCell(place));
      values_[i] = transforms_[i].Unscaled(x);
      if (std::isinf(static_cast<float>(values_[i]))) return NotANumber(place, ShownCell(place));
      row->numbers[i] = transforms_[i].Scaled(values_[i]);
    }
    return absl::OkStatus();
  }

  bool ReadNumber(const Column& rule, absl::string_view cell, double* x) const {
    if (!rule.date().empty()) return ParseDate(rule, cell, x);
    return columns_.decimal() == "," ? ParseWithComma(cell, x) : ParseNumber(cell, x);
  }

  absl::Status NotANumber(const ColumnPlace& column, absl::string_view cell) const {
    std::string form = "number";
    if (!column.rule.date().empty()) {
      const absl::Time some = absl::FromUnixSeconds(1735646706);
      form = absl::StrCat("date like ",
                          absl::FormatTime(column.rule.date(), some, absl::UTCTimeZone()));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("column ", Quote(column.name), " is ", Quote(cell), ", expected a ", form,
                     " or an empty cell; hint: ", NumberHint(column.rule, cell)));
  }

  std::string NumberHint(const Column& rule, absl::string_view cell) const {
    const absl::string_view text = Trimmed(cell);
    double x = 0;
    if (text.empty() || (text.size() < cell.size() && ReadNumber(rule, text, &x))) {
      return "data.columns.trim: true takes the blanks off";
    }
    if (MayBeHeader(cell)) return kHeaderHint;
    if (!HasDigit(text)) {
      return "data.columns.missing lists the texts of a missing value; names are "
             "data.columns.categorical";
    }
    if (!rule.date().empty()) return "data.columns.column.date is the form of its dates";
    if (IsBeyondFloat(text)) {
      return "it is beyond the range of a float, 3.4e38; clip_max, clip_min or log of its `column` "
             "bring it within, or scale it in the file";
    }
    if (HasThousands(text)) {
      return "take what separates the thousands out of the file; a decimal comma is "
             "data.columns.decimal: \",\"";
    }
    if (columns_.decimal() != "," && ParseWithComma(text, &x)) {
      return "data.columns.decimal: \",\" reads decimal commas";
    }
    if (columns_.decimal() == "," && ParseNumber(text, &x)) {
      return "data.columns.decimal is \",\", and this number has a point";
    }
    if (text.size() > 2 && text.front() == '"' && text.back() == '"') {
      return "data.columns.quotes: NONE leaves quotes in the cells";
    }
    if (HasDateSign(text)) {
      return "date of its `column` reads dates; ids are data.columns.categorical";
    }
    return "a number stands alone, without a unit; ids are data.columns.categorical, and "
           "data.columns.missing lists the texts of a missing value";
  }

  static constexpr char kHeaderHint[] =
      "does the first line name the columns? data.columns.header: true";

  const Columns columns_;
  const bool typed_;
  const bool labels_optional_;
  const size_t trained_columns_;  // columns of a training row; 0: not known
  const std::string delimiter_;
  const bool quotes_;
  bool bags_ = false;      // a column has cells of several ids
  bool weighted_ = false;  // one of these columns has pooling MEAN
  bool at_first_row_ = false;
  LabelMap labels_;
  ColumnPlace label_;
  bool without_label_ = false;  // the current file has no labels
  std::vector<ColumnPlace> numeric_, categorical_;
  const std::vector<NumberTransform> transforms_;  // by numeric column
  std::vector<double> values_;                // likewise, in the last parsed row, before scaling
  std::vector<FieldHash> hashes_;             // by categorical column
  std::vector<absl::string_view> cells_;      // of the current line; as many as the first line has
  std::deque<std::string> texts_;             // cells that hold quotes
  std::vector<ParquetColumn> typed_columns_;  // of the cells with types
  std::vector<TypedCell> typed_cells_;        // of the current row
  std::vector<absl::string_view> key_texts_;  // texts of the last parsed row, one for each key
};

absl::StatusOr<std::unique_ptr<RowParser>> NewColumnsParser(const Columns& columns, bool typed,
                                                            const DataStatistics* statistics,
                                                            bool labels_optional,
                                                            int64_t trained_columns) {
  if (columns.label().empty() && !labels_optional) {
    return absl::InvalidArgumentError(
        "data.columns.label is not set, expected the name or number of a column");
  }
  TANDEM_ASSIGN_OR_RETURN(auto transforms, TransformsOf(columns, statistics));
  return std::make_unique<ColumnsParser>(columns, std::move(transforms), typed, labels_optional,
                                         trained_columns);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowParser>> NewDelimitedParser(const Columns& columns,
                                                              const DataStatistics* statistics,
                                                              bool labels_optional,
                                                              int64_t trained_columns) {
  return NewColumnsParser(columns, /*typed=*/false, statistics, labels_optional, trained_columns);
}

absl::StatusOr<std::unique_ptr<RowParser>> NewParquetParser(const Columns& columns,
                                                            const DataStatistics* statistics,
                                                            bool labels_optional) {
  return NewColumnsParser(columns, /*typed=*/true, statistics, labels_optional, 0);
}

}  // namespace tandem::data
