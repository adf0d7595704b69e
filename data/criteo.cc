// The parser of the Criteo display-advertising text format.
#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/row.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

constexpr size_t kColumns = 1 + job::kCriteoNumbers + job::kCriteoFields;

class CriteoParser final : public RowParser {
 public:
  explicit CriteoParser(bool labels_optional) : labels_optional_(labels_optional) {
    for (int f = 1; f <= job::kCriteoFields; ++f) hashes_.emplace_back(absl::StrCat("C", f));
  }

  absl::Span<const absl::string_view> texts() const override {
    return absl::MakeConstSpan(cells_).subspan(1 + job::kCriteoNumbers);
  }

  absl::Status StartFile(absl::string_view first_line) override {
    const size_t count = SplitCells(first_line, '\t', {});
    columns_ = labels_optional_ && count == kColumns - 1 ? kColumns - 1 : kColumns;
    return absl::OkStatus();
  }

  absl::Status Parse(absl::string_view line, Row* row) override {
    const size_t count = SplitCells(line, '\t', absl::MakeSpan(cells_));
    if (count != columns_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the row has ", count, " columns, expected ", columns_, " (",
          columns_ == kColumns ? "label, " : "no label as in the first row, ",
          "13 integers, 26 categorical values, separated by tabs); hint: other layouts are read "
          "with format: DELIMITED"));
    }
    if (columns_ < kColumns) std::rotate(cells_.begin(), cells_.end() - 1, cells_.end());
    row->label = cells_[0] == "1" ? 1.0f : 0.0f;
    if (columns_ < kColumns || (labels_optional_ && cells_[0].empty())) {
      row->label = kNoLabel;
    } else if (cells_[0] != "0" && cells_[0] != "1") {
      return absl::InvalidArgumentError(absl::StrCat("the label is ", Quote(cells_[0]),
                                                     ", expected 0 or 1; hint: the test file of "
                                                     "Criteo has no labels"));
    }
    row->weights.clear();
    ParseKeys(row);
    return ParseNumbers(row);
  }

 private:
  absl::Status ParseNumbers(Row* row) {
    row->numbers.resize(job::kCriteoNumbers);
    for (int i = 0; i < job::kCriteoNumbers; ++i) {
      const absl::string_view cell = cells_[1 + i];
      float x = 0;
      if (!cell.empty() && !ParseNumber(cell, &x)) {
        return absl::InvalidArgumentError(
            absl::StrCat("column ", 1 + i, " (I", 1 + i, ") is ", Quote(cell),
                         ", expected a number or an empty cell; hint: ",
                         IsBeyondFloat(cell) ? "it is beyond the range of a float, 3.4e38"
                                             : "columns are counted from 0, the label"));
      }
      row->numbers[i] = LogTransform(x);
    }
    return absl::OkStatus();
  }

  void ParseKeys(Row* row) {
    row->keys.resize(job::kCriteoFields);
    for (int f = 0; f < job::kCriteoFields; ++f) {
      const absl::string_view cell = cells_[1 + job::kCriteoNumbers + f];
      row->keys[f] = cell.empty() ? hashes_[f].missing() : hashes_[f].Key(cell);
    }
  }

  const bool labels_optional_;
  size_t columns_ = kColumns;  // of the current file; one less: no labels
  std::array<absl::string_view, kColumns> cells_;
  std::vector<FieldHash> hashes_;
};

}  // namespace

std::unique_ptr<RowParser> NewCriteoParser(bool labels_optional) {
  return std::make_unique<CriteoParser>(labels_optional);
}

}  // namespace tandem::data
