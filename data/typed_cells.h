// Cells that have types, as those of Arrow and Parquet, and rows of such cells as bytes.
//
// A cell of a column of ids has the id of its text, which is that of the same value in a CSV file:
// 7, 7.0 and "7" are `7`, and true is `True`.
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
    kFloat,    // its shortest text is that of a float
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

  // Whether it stands for no value: a null, a NaN or an empty text.
  bool IsMissing() const;
  // The text of a value that is no list and no time; "" for a missing one. May refer to `buffer`,
  // which it overwrites.
  absl::string_view Text(std::string* buffer) const;
  // The number of a value that is none of text, list and time; NaN for a missing one.
  double Number() const;
};

// Appends a cell to a row.
void AppendCell(const TypedCell& cell, std::string* row);
// Takes the first cell off a row, which must be a row that AppendCell has made. Text refers to the
// row.
void TakeCell(absl::string_view* row, TypedCell* cell);

}  // namespace tandem::data

#endif  // TANDEM_DATA_TYPED_CELLS_H_
