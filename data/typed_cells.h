// A TypedCell is a value of a Parquet file or an Arrow table, with its type. AppendCell and
// TakeCell convert rows of such cells to bytes and back.
//
// The id of a cell is the id of its text, so the same value in a CSV file has the same id: 7, 7.0
// and "7" have the text `7`, and true has `True`.
#ifndef TANDEM_DATA_TYPED_CELLS_H_
#define TANDEM_DATA_TYPED_CELLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::data {

struct TypedCell {
  enum class Kind : uint8_t {
    kNull = 0,
    kText,
    kInteger,  // int64
    kFloat,    // has the shortest text of a float, not of a double: 0.1
    kDouble,
    kBool,
    kTime,  // seconds since 1970
    kList,
  };
  Kind kind = Kind::kNull;
  absl::string_view text;  // kText; may refer to `owned`
  std::string owned;
  int64_t integer = 0;           // kInteger, kBool
  double number = 0;             // kFloat, kDouble, kTime
  std::vector<TypedCell> items;  // kList

  // Whether the value is missing: a null, a NaN or an empty text.
  bool IsMissing() const;
  // The text of a value other than a list or a time; "" for a missing one. The text may refer to
  // `buffer`, which the call overwrites.
  absl::string_view Text(std::string* buffer) const;
  // The number of a value other than a text, a list or a time; NaN for a missing one.
  double Number() const;
};

// Appends a cell to a row.
void AppendCell(const TypedCell& cell, std::string* row);
// Removes the first cell from `row`, which AppendCell must have written: other bytes end the
// process. The cell's text refers to the row.
void TakeCell(absl::string_view* row, TypedCell* cell);

}  // namespace tandem::data

#endif  // TANDEM_DATA_TYPED_CELLS_H_
