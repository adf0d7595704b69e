// The types in which servers store rows (Table.Dtype), and their sizes. row_rounding.h converts.
#ifndef TANDEM_OPTIM_ROW_DTYPE_H_
#define TANDEM_OPTIM_ROW_DTYPE_H_

#include <cstddef>

#include "proto/job.pb.h"

namespace tandem::optim {

// The types in which a table stores its rows; unspecified is F32.
struct RowTypes {
  Table::Dtype row = Table::F32, state = Table::F32;
};

// Bytes of one element.
constexpr size_t ElementBytes(Table::Dtype type) { return type <= Table::F32 ? 4 : 2; }

// The words of 4 bytes that a row takes on the wire. The last one may be half empty.
constexpr size_t WireWords(Table::Dtype type, size_t dim) {
  return (dim * ElementBytes(type) + 3) / 4;
}

// The largest magnitude of F16. A value of 65,520 or more has no neighbour in F16 but infinity.
inline constexpr float kMaxF16 = 65504;

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_ROW_DTYPE_H_
