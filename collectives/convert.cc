#include "collectives/convert.h"

#include <bit>
#include <cstdint>

#include "base/check.h"

namespace tandem {
namespace {

// All branches are selects, so that the compiler can vectorise the loops below.

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded);
}

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// f16 has 10 bits of mantissa where f32 has 23, and exponents from -14 where f32 has -126.
uint16_t ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  // Rebias the exponent by 15 - 127, add half of the last place kept, ties to even.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 the processor rounds: 0.5 has its last place where f16's subnormals have theirs.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f);
  uint32_t out = magnitude < (113u << 23) ? subnormal : normal;
  out = magnitude >= (143u << 23) || out > 0x7c00 ? 0x7c00 : out;
  out = magnitude > 0x7f800000 ? 0x7e00 : out;
  return static_cast<uint16_t>(sign | out);
}

float FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fff) << 13;
  // As if it were f32, the value is 2^112 too small; exact also for subnormals.
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const bool special = magnitude >= (31u << 23);
  const uint32_t out = special ? magnitude | 0x7f800000 : std::bit_cast<uint32_t>(scaled);
  return std::bit_cast<float>(sign | out);
}

}  // namespace

void Narrow(DataType type, absl::Span<const float> in, float factor, void* out) {
  TANDEM_CHECK(type == DataType::kF16 || type == DataType::kBF16);
  auto* const to = static_cast<uint16_t*>(out);
  if (type == DataType::kBF16) {
    for (size_t i = 0; i < in.size(); ++i) to[i] = ToBf16(in[i] * factor);
  } else {
    for (size_t i = 0; i < in.size(); ++i) to[i] = ToF16(in[i] * factor);
  }
}

void Widen(DataType type, const void* in, float factor, absl::Span<float> out) {
  TANDEM_CHECK(type == DataType::kF16 || type == DataType::kBF16);
  const auto* const from = static_cast<const uint16_t*>(in);
  if (type == DataType::kBF16) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = FromBf16(from[i]) * factor;
  } else {
    for (size_t i = 0; i < out.size(); ++i) out[i] = FromF16(from[i]) * factor;
  }
}

}  // namespace tandem
