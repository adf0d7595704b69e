#include "optim/row_rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "absl/container/inlined_vector.h"
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

bool StoreNearest(Table::Dtype type, absl::Span<const float> in, void* out, int exponent) {
  if (type == Table::INT8) {
    const uint32_t largest = internal::LargestMagnitude(in.size(), in.data());
    if (largest > std::bit_cast<uint32_t>(kMaxInt8)) return false;
    exponent = std::max(exponent, internal::LeastExponent(largest));
    internal::StoreInt8(
        in.size(), in.data(), std::min(exponent, kMaxExponent),
        [](size_t, uint32_t units) { return 0x7fffu + ((units >> 16) & 1u); }, out);
    return true;
  }
  // Half of the distance between the neighbours, and a little more if the lower one is odd.
  const auto half = [type](size_t, float value) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
    if (type == Table::BF16) return 0x7fffu + ((magnitude >> 16) & 1u);
    const bool normal = magnitude >= (113u << 23);
    const uint32_t lower = normal ? magnitude >> 13 : internal::ToF16(std::abs(value), 0);
    return normal ? (0xfffu + (lower & 1u)) << 3 : 0x7fffu + (lower & 1u);
  };
  return internal::Store(type, in.size(), in.data(), half, out);
}

bool RoundToNearest(Table::Dtype type, absl::Span<float> row) {
  if (ElementBytes(type) == sizeof(float)) return true;
  absl::InlinedVector<char, 256> stored(WeightBytes(type, row.size()));
  const bool holds = StoreNearest(type, row, stored.data());
  if (holds || type != Table::INT8) ExpandRow(type, row.size(), stored.data(), row.data());
  return holds;
}

}  // namespace tandem::optim
