// Elements as bits: when two that differ are the same all the same. Standard library only, for the
// GPU checks too.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_ELEMENT_BITS_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_ELEMENT_BITS_H_

#include <cstdint>

#include "collectives/types.h"

namespace tandem {

inline bool IsNan(collectives::DataType type, uint64_t bits) {
  switch (type) {
    case collectives::DataType::kF32:
      return (bits & 0x7fffffff) > 0x7f800000;
    case collectives::DataType::kF64:
      return (bits & 0x7fffffffffffffff) > 0x7ff0000000000000;
    case collectives::DataType::kF16:
      return (bits & 0x7fff) > 0x7c00;
    case collectives::DataType::kBF16:
      return (bits & 0x7fff) > 0x7f80;
    default:
      return false;
  }
}

// Equal to the bit, or both not a number.
inline bool SameElement(collectives::DataType type, uint64_t x, uint64_t y) {
  return x == y || (IsNan(type, x) && IsNan(type, y));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_ELEMENT_BITS_H_
