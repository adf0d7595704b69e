#include "optim/row_rounding.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "optim/dim_dispatch.h"

namespace tandem::optim {

void ExpandWireRows(Table::Dtype type, size_t dim, size_t rows, const void* in, float* out) {
  const size_t words = WireWords(type, dim);
  DispatchDim(static_cast<int>(dim), [&](auto d) {
    for (size_t i = 0; i < rows; ++i) {
      ExpandRow(type, d, static_cast<const char*>(in) + i * words * 4, out + i * dim);
    }
  });
}

// Half of the distance between the neighbours, and a little more if the lower neighbour is odd.
bool StoreNearest(Table::Dtype type, absl::Span<const float> in, void* out) {
  const auto half = [type](size_t, float value) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    if (type == Table::BF16) return 0x7fffu + ((magnitude >> 16) & 1u);
    const bool normal = magnitude >= (113u << 23);
    const uint32_t lower = normal ? magnitude >> 13 : internal::ToF16(std::abs(value), 0);
    return normal ? (0xfffu + (lower & 1u)) << 3 : 0x7fffu + (lower & 1u);
  };
  return internal::Store(type, in.size(), in.data(), half, out);
}

void RoundToNearest(Table::Dtype type, absl::Span<float> in) {
  if (ElementBytes(type) == sizeof(float)) return;
  for (float& value : in) {
    uint16_t half = 0;
    StoreNearest(type, {&value, 1}, &half);
    value = type == Table::BF16 ? internal::FromBf16(half) : internal::FromF16(half);
  }
}

}  // namespace tandem::optim
