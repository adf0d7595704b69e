// Exact inputs: numbers whose reduction is exact in any order. The result must match to the bit, so
// a contribution that is dropped, doubled or swapped cannot stay unnoticed. Tests and
// benchmarks use them.
#ifndef TANDEM_COLLECTIVES_EXACT_NUMBERS_H_
#define TANDEM_COLLECTIVES_EXACT_NUMBERS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "collectives/types.h"

namespace tandem::collectives {

// ---- Numbers of any type, by value ----

// The bits of an f16. Requires a value that is representable and normal, or 0.
inline uint16_t HalfBits(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double mantissa = std::frexp(std::abs(value), &exponent);  // [.5, 1)
  const auto bits = static_cast<uint16_t>(std::ldexp(mantissa, 11));
  TANDEM_CHECK(std::ldexp(static_cast<double>(bits), exponent - 11) == std::abs(value));
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + (bits & 0x3ff));
}

// The value of a finite f16.
inline double HalfValue(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

// Memory for `count` elements of a type, with guard bytes on both sides.
class Vector {
 public:
  Vector(DataType type, int64_t count, size_t misaligned = 0)
      : type_(type),
        count_(count),
        offset_(kGuard + misaligned),
        bytes_(2 * kGuard + misaligned + static_cast<size_t>(count) * SizeOf(type), kFill) {}

  DataType type() const { return type_; }
  int64_t count() const { return count_; }
  uint8_t* data() { return bytes_.data() + offset_; }
  const uint8_t* data() const { return bytes_.data() + offset_; }
  size_t size() const { return static_cast<size_t>(count_) * SizeOf(type_); }

  void Set(int64_t i, double value) {
    uint8_t* const at = data() + static_cast<size_t>(i) * SizeOf(type_);
    switch (type_) {
      case DataType::kF32:
        return Put(at, static_cast<float>(value));
      case DataType::kF64:
        return Put(at, value);
      case DataType::kF16:
        return Put(at, HalfBits(value));
      case DataType::kBF16: {
        const auto wide = static_cast<float>(value);
        uint32_t bits = 0;
        std::memcpy(&bits, &wide, 4);
        return Put(at, static_cast<uint16_t>(bits >> 16));
      }
      case DataType::kI32:
        return Put(at, static_cast<int32_t>(value));
      case DataType::kI64:
        return Put(at, static_cast<int64_t>(value));
      case DataType::kU8:
        return Put(at, static_cast<uint8_t>(value));
    }
  }

  double Get(int64_t i) const {
    const uint8_t* const at = data() + static_cast<size_t>(i) * SizeOf(type_);
    switch (type_) {
      case DataType::kF32:
        return Take<float>(at);
      case DataType::kF64:
        return Take<double>(at);
      case DataType::kF16:
        return HalfValue(Take<uint16_t>(at));
      case DataType::kBF16: {
        const uint32_t bits = static_cast<uint32_t>(Take<uint16_t>(at)) << 16;
        float wide = 0;
        std::memcpy(&wide, &bits, 4);
        return wide;
      }
      case DataType::kI32:
        return Take<int32_t>(at);
      case DataType::kI64:
        return static_cast<double>(Take<int64_t>(at));
      case DataType::kU8:
        return Take<uint8_t>(at);
    }
    return 0;
  }

  bool GuardsIntact() const {
    for (size_t i = 0; i < offset_; ++i) {
      if (bytes_[i] != kFill) return false;
    }
    for (size_t i = offset_ + size(); i < bytes_.size(); ++i) {
      if (bytes_[i] != kFill) return false;
    }
    return true;
  }
  bool operator==(const Vector& other) const {
    return size() == other.size() && std::memcmp(data(), other.data(), size()) == 0;
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kFill = 0xa5;
  template <typename T>
  static void Put(uint8_t* at, T value) {
    std::memcpy(at, &value, sizeof(value));
  }
  template <typename T>
  static T Take(const uint8_t* at) {
    T value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }

  DataType type_;
  int64_t count_;
  size_t offset_;
  std::vector<uint8_t> bytes_;
};

// ---- Exact inputs ----

// Element i of rank r's input.
//
// The values are chosen so that the result over up to 64 ranks is exact in every type (products of
// u8: over up to 63). A product has few factors of 2 (one rank in nine), and all others are 1 or
// -1. Logical ops mix zeros with numbers other than 1, so that a result that is not normalised to 1
// is found. Bit ops use the low 7 bits, which every integer type has. Sums use integers from 0 to
// 3; signed types also use -1 to -3, and floating-point types multiply by 1/8, so that the element
// is a fraction.
inline double ExactInput(ReduceOp op, DataType type, int rank, int64_t i) {
  const uint64_t random = HashCombine(static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
  switch (op) {
    case ReduceOp::kProduct:
      if ((rank + i) % 9 == 0) return 2;  // one rank in nine
      return type == DataType::kU8 || random % 2 == 0 ? 1 : -1;
    case ReduceOp::kLogicalOr:
      return random % 8 == 0 ? 2 : 0;
    case ReduceOp::kLogicalAnd:
      return random % 8 == 0 ? 0 : 3;
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return static_cast<double>(1 << random % 7);
    case ReduceOp::kBitAnd:
      return static_cast<double>(127 & ~(random % 8 == 0 ? 1 << random / 8 % 7 : 0));
    default: {
      const double integer = static_cast<double>(random % 4);
      if (type == DataType::kU8) return integer;
      const double sign = random / 4 % 2 == 0 ? 1 : -1;
      return sign * integer * (IsFloating(type) ? 0.125 : 1);
    }
  }
}

inline double ExactReduce(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kLogicalOr:
      return a != 0 || b != 0 ? 1 : 0;
    case ReduceOp::kLogicalAnd:
      return a != 0 && b != 0 ? 1 : 0;
    case ReduceOp::kBitOr:
      return static_cast<double>(static_cast<int64_t>(a) | static_cast<int64_t>(b));
    case ReduceOp::kBitAnd:
      return static_cast<double>(static_cast<int64_t>(a) & static_cast<int64_t>(b));
    case ReduceOp::kBitXor:
      return static_cast<double>(static_cast<int64_t>(a) ^ static_cast<int64_t>(b));
    default:
      return a + b;
  }
}

// The reduction of element i over all ranks, before an average is divided.
inline double ExactResult(ReduceOp op, DataType type, int ranks, int64_t i) {
  double out = ExactInput(op, type, 0, i);
  for (int r = 1; r < ranks; ++r) out = ExactReduce(op, out, ExactInput(op, type, r, i));
  return out;
}

inline void FillExact(ReduceOp op, int rank, Vector* v) {
  for (int64_t i = 0; i < v->count(); ++i) v->Set(i, ExactInput(op, v->type(), rank, i));
}

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_EXACT_NUMBERS_H_
