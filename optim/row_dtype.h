// The types in which servers store rows (Table.Dtype), and their sizes. row_rounding.h converts.
#ifndef TANDEM_OPTIM_ROW_DTYPE_H_
#define TANDEM_OPTIM_ROW_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "proto/job.pb.h"

namespace tandem::optim {

// The types in which a table stores its rows; unspecified is F32.
struct RowTypes {
  Table::Dtype row = Table::F32, state = Table::F32;
  // The type of rows with at least `hot_updates` updates (HotRows). hot_updates 0: no row is hot.
  Table::Dtype hot = Table::F32;
  int64_t hot_updates = 0;

  // Whether a row has a RowHead.
  bool has_heads() const { return row == Table::INT8 || hot_updates > 0; }
};

// The scale and the count of updates of a row, if its types ask for them.
struct RowHead {
  static constexpr int8_t kNoExponent = -128;
  static constexpr uint8_t kHot = 255;

  bool hot() const { return updates == kHot; }
  friend bool operator==(const RowHead&, const RowHead&) = default;

  // INT8: a weight is 2^exponent times its integer. kNoExponent: not known, or of a hot row.
  int8_t exponent = kNoExponent;
  uint8_t updates = 0;  // an UpdateCount, or kHot; 0 if no row becomes hot
};
static_assert(sizeof(RowHead) == 2);

// Bytes of one element.
constexpr size_t ElementBytes(Table::Dtype type) {
  return type <= Table::F32 ? 4 : type == Table::INT8 ? 1 : 2;
}

// Bytes of `dim` weights. Behind those of INT8 lies their exponent.
constexpr size_t WeightBytes(Table::Dtype type, size_t dim) {
  return dim * ElementBytes(type) + (type == Table::INT8 ? 1 : 0);
}

// The words of 4 bytes that a row takes on the wire. The last one may be partly empty.
constexpr size_t WireWords(Table::Dtype type, size_t dim) {
  return (WeightBytes(type, dim) + 3) / 4;
}

// The largest magnitude of F16. A value of 65,520 or more has no neighbour in F16 but infinity.
inline constexpr float kMaxF16 = 65504;

// The exponents of INT8 rows, and the largest weight of such a row. 2^(16 - exponent) is a finite
// float, and so is 127 * 2^exponent.
inline constexpr int kMinExponent = -110, kMaxExponent = 121;
inline constexpr float kMaxInt8 = 127 * 0x1p121f;

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_ROW_DTYPE_H_
