// The number of updates of a row in 8 bits, for hot rows. The count is exact up to 16. Beyond that
// it is in steps of a power of two, 2^e, and an update adds a step with probability 2^-e, so that
// the mean is right (Morris 1978, "Counting large numbers of events in small registers").
//
// Thread safety: pure functions.
#ifndef TANDEM_OPTIM_UPDATE_COUNT_H_
#define TANDEM_OPTIM_UPDATE_COUNT_H_

#include <cstdint>

#include "optim/row_dtype.h"

namespace tandem::optim {

class UpdateCount {
 public:
  static constexpr uint8_t kLast = RowHead::kHot - 1;  // the count stays there

  // The number of updates that a count stands for.
  static constexpr int64_t Updates(uint8_t count) {
    return (int64_t{16 + count % 16} << (count / 16)) - 16;
  }
  // The count after one more update. `bits`: random, 0 to 65535.
  static constexpr uint8_t Next(uint8_t count, uint32_t bits) {
    const bool steps = count < kLast && bits < (65536u >> (count / 16));
    return static_cast<uint8_t>(count + (steps ? 1 : 0));
  }
};

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_UPDATE_COUNT_H_
