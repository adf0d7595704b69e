// The conversions between f32 and the types in which servers store rows (row_dtype.h).
//
// A server computes in f32 and rounds once, when it stores the result. The rounding is stochastic:
// the value becomes one of its two neighbours, with probabilities such that the mean over many
// roundings is the value (Gupta et al. 2015, "Deep learning with limited numerical
// precision"). Rounding to nearest would lose each change that is smaller than half the distance
// of the neighbours, and with it all training with a small learning rate.
//
// An INT8 row is dim integers of -127 to 127 and an exponent; its scale is 2^exponent. A new row
// has the least scale with which its largest weight fits. An update changes the scale only if a
// weight does not fit any more, or if a scale four times smaller would do, and then sets the least
// one. Otherwise weights that do not change keep their bits.
//
// The random bits are a hash of (seed of the table, key, stamp of the update, stream, element). The
// result therefore depends neither on the server nor on the order in which rows are updated.
//
// Thread safety: pure functions.
#ifndef TANDEM_OPTIM_ROW_ROUNDING_H_
#define TANDEM_OPTIM_ROW_ROUNDING_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "base/hash.h"
#include "optim/row_dtype.h"
#include "proto/job.pb.h"

namespace tandem::optim {

// The random bits of one row in one update.
class RoundingBits {
 public:
  enum Stream : uint64_t { kWeights = 0, kState = 1, kUpdates = 2 };

  // `seed`: the table's. `stamp`: the number of the update in its range, which never repeats.
  RoundingBits(uint64_t seed, int64_t stamp, uint64_t key, Stream stream) {
    const uint64_t hash =
        HashCombine(HashCombine(seed + stream, static_cast<uint64_t>(stamp)), key);
    low_ = static_cast<uint32_t>(hash);
    high_ = static_cast<uint32_t>(hash >> 32);
  }

  // 16 bits for the element. In 32-bit arithmetic, which compilers turn into vector instructions:
  // the finaliser of MurmurHash3 with the second half of the hash in its middle.
  uint32_t operator()(size_t element) const {
    uint32_t x = low_ + static_cast<uint32_t>(element) * 0x9e3779b9u;
    x = (x ^ (x >> 16)) * 0x85ebca6bu + high_;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x >> 16;
  }

 private:
  uint32_t low_, high_;
};

namespace internal {

// Without a branch, so that loops become vector instructions.
inline uint32_t Choose(bool which, uint32_t yes, uint32_t no) {
  const uint32_t mask = 0u - static_cast<uint32_t>(which);
  return (yes & mask) | (no & ~mask);
}

// `bits`: 0 to 65535. A value at the part p of the way from its lower to its upper neighbour, in
// magnitude, becomes the upper one if bits / 65536 is at least 1 - p.
inline uint16_t ToBf16(float value, uint32_t bits) {
  const uint32_t from = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (from + bits) >> 16;
  const bool nan = (from & 0x7fffffffu) > 0x7f800000u;  // a carry would make it another number
  return static_cast<uint16_t>(Choose(nan, from >> 16 | 0x40u, rounded));
}

// Numbers below 2^-14 are multiples of 2^-24. Infinity from 65536 on, and by rounding up.
inline uint16_t ToF16(float value, uint32_t bits) {
  const uint32_t from = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = from & 0x7fffffffu;
  const uint32_t normal = (magnitude - ((127u - 15u) << 23) + (bits >> 3)) >> 13;
  // In units of 2^-40. The minimum keeps the conversion defined for numbers that are not small.
  const uint32_t small = std::min(magnitude, 113u << 23);
  const uint32_t units =
      static_cast<uint32_t>(static_cast<int32_t>(std::bit_cast<float>(small) * 1099511627776.0f));
  uint32_t out = Choose(magnitude < (113u << 23), (units + bits) >> 16, normal);
  out = Choose(magnitude >= (143u << 23), 0x7c00u, out);
  out = Choose(magnitude > (0xffu << 23), 0x7e00u, out);
  return static_cast<uint16_t>(out | (from >> 16 & 0x8000u));
}

inline float FromBf16(uint16_t half) {
  return std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// Exponent and mantissa are shifted into place, then the bias of the exponent is corrected. For
// subnormal numbers a subtraction of floats does this, and normalises them.
inline float FromF16(uint16_t half) {
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & (0x1fu << 23);
  const uint32_t smallest = 113u << 23;  // 2^-14
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude | smallest) -
                                                     std::bit_cast<float>(smallest));
  uint32_t out = magnitude + ((127u - 15u) << 23);
  out = Choose(exponent == (0x1fu << 23), magnitude | (0xffu << 23), out);
  out = Choose(exponent == 0, subnormal, out);
  return std::bit_cast<float>(out | (half & 0x8000u) << 16);
}

// 2^exponent, for exponents of normal floats.
inline float PowerOfTwo(int exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

// The bits of the largest magnitude. Bits have the order of magnitudes, and a NaN is above all.
template <typename N>
inline uint32_t LargestMagnitude(N n, const float* __restrict in) {
  uint32_t largest = 0;
  for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
    largest = std::max(largest, std::bit_cast<uint32_t>(in[j]) & 0x7fffffffu);
  }
  return largest;
}

// The least exponent e, kMinExponent or more, such that the magnitude is at most 127 * 2^e.
// `magnitude`: bits of a float.
inline int LeastExponent(uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 23) - 127 - 6;  // 64 * 2^exponent <= magnitude
  const bool above = (magnitude & 0x7fffffu) > 0x7e0000u;            // more than 127/64 of it
  return std::max(exponent + (above ? 1 : 0), kMinExponent);
}

// The magnitude of a value in units of 2^-16 of the scale. `factor`: 2^(16 - exponent).
inline uint32_t Int8Units(float value, float factor) {
  return static_cast<uint32_t>(static_cast<int32_t>(std::abs(value) * factor));
}

}  // namespace internal

// Copies the stored row of n values to out, as floats. Exact. `n`: as in DispatchDim.
template <typename N>
inline void ExpandRow(Table::Dtype type, N n, const void* in, float* __restrict out) {
  const auto count = static_cast<size_t>(n);
  const auto each = [=](auto from_half) {
    for (size_t j = 0; j < count; ++j) {
      uint16_t half;
      std::memcpy(&half, static_cast<const char*>(in) + 2 * j, sizeof half);
      out[j] = from_half(half);
    }
  };
  if (type == Table::BF16) return each([](uint16_t half) { return internal::FromBf16(half); });
  if (type == Table::F16) return each([](uint16_t half) { return internal::FromF16(half); });
  if (type == Table::INT8) {
    const auto* const from = static_cast<const int8_t*>(in);
    const float scale = internal::PowerOfTwo(from[count]);
// g++ makes no vector instructions of the unrolled loop, and it then takes three times as long.
#pragma GCC unroll 1
    for (size_t j = 0; j < count; ++j) out[j] = static_cast<float>(from[j]) * scale;
    return;
  }
  if (count > 0) std::memcpy(out, in, count * sizeof(float));
}

// `rows` rows from the wire, as [rows, dim] floats.
void ExpandWireRows(Table::Dtype type, size_t dim, size_t rows, const void* in, float* out);

namespace internal {

inline constexpr uint16_t kInfiniteF16 = 0x7c00;

// Stores an INT8 row with this exponent. bits_of(element, units): how far to round up, of 65536.
template <typename N, typename BitsOf>
inline void StoreInt8(N n, const float* __restrict in, int exponent, BitsOf bits_of, void* to) {
  int8_t* const __restrict out = static_cast<int8_t*>(to);
  const float factor = PowerOfTwo(16 - exponent);
  for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
    const uint32_t units = Int8Units(in[j], factor);
    const auto number = static_cast<int32_t>((units + bits_of(j, units)) >> 16);
    const int32_t sign = std::bit_cast<int32_t>(in[j]) >> 31;
    out[j] = static_cast<int8_t>((number ^ sign) - sign);
  }
  out[static_cast<size_t>(n)] = static_cast<int8_t>(exponent);
}

// Stores in[j] for j in [0, n), of another type. bits_of(element, value): how far to round up, of
// 65536.
template <typename N, typename BitsOf>
inline bool Store(Table::Dtype type, N n, const float* __restrict in, BitsOf bits_of, void* to) {
  const auto count = static_cast<size_t>(n);
  char* const __restrict out = static_cast<char*>(to);
  const auto put = [out](size_t j, uint16_t half) { std::memcpy(out + 2 * j, &half, sizeof half); };
  if (type == Table::BF16) {
    for (size_t j = 0; j < count; ++j) put(j, ToBf16(in[j], bits_of(j, in[j])));
    return true;
  }
  if (type != Table::F16) {
    if (count > 0) std::memcpy(out, in, count * sizeof(float));
    return true;
  }
  uint32_t infinite = 0;
  for (size_t j = 0; j < count; ++j) {
    const uint16_t half = ToF16(in[j], bits_of(j, in[j]));
    infinite |= Choose((half & kInfiniteF16) == kInfiniteF16, 1, 0);
    put(j, half);
  }
  return infinite == 0;
}

}  // namespace internal

// Stores a row of n values, rounded at random. False if the type cannot hold a value. F16 then has
// infinity in its place, and INT8 keeps the row of `out`. `n`: as in DispatchDim. Requires: for
// INT8, `out` has a stored row, whose scale the rules above may keep.
template <typename N>
inline bool StoreRow(Table::Dtype type, N n, const float* in, const RoundingBits& bits, void* out) {
  if (type != Table::INT8) {
    return internal::Store(
        type, n, in, [bits](size_t j, float) { return bits(j); }, out);
  }
  const uint32_t largest = internal::LargestMagnitude(n, in);
  if (largest > std::bit_cast<uint32_t>(kMaxInt8)) return false;
  const int least = internal::LeastExponent(largest);
  const int before = static_cast<int8_t*>(out)[static_cast<size_t>(n)];
  internal::StoreInt8(
      n, in, before >= least && before < least + 2 ? before : least,
      [bits](size_t j, uint32_t) { return bits(j); }, out);
  return true;
}

// The same, rounded to nearest, ties to even: for initial values, and for rows from elsewhere. The
// rounding of a stored row changes no value. An INT8 row gets the least exponent, or `exponent` if
// it is larger.
bool StoreNearest(Table::Dtype type, absl::Span<const float> in, void* out,
                  int exponent = RowHead::kNoExponent);
// The row as StoreNearest would store it. False if the type cannot hold a value.
bool RoundToNearest(Table::Dtype type, absl::Span<float> row);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_ROW_ROUNDING_H_
