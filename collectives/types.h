// The element types and reductions of collectives, with the names that users write.
//
// Depends only on the standard library, so that CUDA code can share it.
#ifndef TANDEM_COLLECTIVES_TYPES_H_
#define TANDEM_COLLECTIVES_TYPES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tandem::collectives {

// The numbers go over the wire: never reuse one.
enum class DataType : uint8_t { kF32, kF64, kF16, kBF16, kI32, kI64, kU8 };

enum class ReduceOp : uint8_t {
  kSum,        // integers wrap around
  kProduct,    // integers wrap around
  kMin,        // NaN if any is NaN; -0 is less than +0
  kMax,        // NaN if any is NaN; -0 is less than +0
  kAverage,    // the sum times 1 / ranks; does not overflow where the average does not
  kPreMulSum,  // every contribution is multiplied by a scalar, then the sum
  kLogicalOr,  // 1 if any is not zero (a NaN counts as not zero), else 0
  kLogicalAnd,
  kBitOr,
  kBitAnd,
  kBitXor,
};

inline constexpr DataType kDataTypes[] = {DataType::kF32,  DataType::kF64, DataType::kF16,
                                          DataType::kBF16, DataType::kI32, DataType::kI64,
                                          DataType::kU8};
inline constexpr ReduceOp kReduceOps[] = {
    ReduceOp::kSum,     ReduceOp::kProduct,   ReduceOp::kMin,       ReduceOp::kMax,
    ReduceOp::kAverage, ReduceOp::kPreMulSum, ReduceOp::kLogicalOr, ReduceOp::kLogicalAnd,
    ReduceOp::kBitOr,   ReduceOp::kBitAnd,    ReduceOp::kBitXor};
inline constexpr size_t kDataTypeCount = sizeof(kDataTypes) / sizeof(kDataTypes[0]);
inline constexpr size_t kReduceOpCount = sizeof(kReduceOps) / sizeof(kReduceOps[0]);

// The element type of the program, where the elements travel as another type. Ranks must agree on
// it, and errors name it. The numbers go over the wire: never reuse one.
enum class ElementName : uint8_t { kAsType, kBool, kI8, kI16, kC64, kC128, kF16, kBF16 };
inline constexpr size_t kElementNameCount = 8;

constexpr const char* Name(ElementName name) {
  constexpr const char* kNames[] = {"", "bool", "i8", "i16", "c64", "c128", "f16", "bf16"};
  return kNames[static_cast<size_t>(name)];
}

constexpr const char* Name(DataType type) {
  constexpr const char* kNames[] = {"f32", "f64", "f16", "bf16", "i32", "i64", "u8"};
  return kNames[static_cast<size_t>(type)];
}

constexpr const char* Name(ReduceOp op) {
  constexpr const char* kNames[] = {"sum",     "product",   "min",        "max",
                                    "average", "premulsum", "logical_or", "logical_and",
                                    "bit_or",  "bit_and",   "bit_xor"};
  return kNames[static_cast<size_t>(op)];
}

// nullopt if no type (or op) has that name.
constexpr std::optional<DataType> ParseDataType(std::string_view name) {
  for (const DataType type : kDataTypes) {
    if (name == Name(type)) return type;
  }
  return std::nullopt;
}

constexpr std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  for (const ReduceOp op : kReduceOps) {
    if (name == Name(op)) return op;
  }
  return std::nullopt;
}

// A code for the elements of a message, so that sender and receiver can compare them. 0 means "not
// given".
constexpr uint16_t ElementsCode(DataType type, ElementName called) {
  return static_cast<uint16_t>(1 + static_cast<int>(type) + (static_cast<int>(called) << 8));
}

// Check numbers from the wire.
constexpr bool IsDataType(uint8_t number) { return number < kDataTypeCount; }
constexpr bool IsReduceOp(uint8_t number) { return number < kReduceOpCount; }
constexpr bool IsElementName(uint8_t number) { return number < kElementNameCount; }
constexpr const char* ElementsName(uint16_t code) {
  const auto type = static_cast<uint8_t>(code - 1), called = static_cast<uint8_t>((code - 1) >> 8);
  if (code == 0 || !IsDataType(type) || !IsElementName(called)) return "unknown elements";
  return called != 0 ? Name(static_cast<ElementName>(called)) : Name(static_cast<DataType>(type));
}

// Bytes of one element.
constexpr size_t SizeOf(DataType type) {
  constexpr size_t kSizes[] = {4, 8, 2, 2, 4, 8, 1};
  return kSizes[static_cast<size_t>(type)];
}

constexpr bool IsFloating(DataType type) {
  return type == DataType::kF32 || type == DataType::kF64 || type == DataType::kF16 ||
         type == DataType::kBF16;
}

// An average is a sum of contributions that were multiplied by BeforeAverage; the sum is then
// multiplied by AfterAverage. BeforeAverage is the largest power of two that is at most 1 / ranks.
// Multiplying by it is exact (except for subnormal numbers), and no sum can be larger than the
// largest contribution.
constexpr double BeforeAverage(int ranks) {
  double factor = 1;
  while (factor * ranks > 1) factor /= 2;
  return factor;
}
constexpr double AfterAverage(int ranks) { return 1 / BeforeAverage(ranks) / ranks; }

// Whether the op is defined for the type. Average and PreMulSum multiply by a fraction. Integers
// would have to be rounded by a rule of our own, so callers that want an integer average sum and
// divide themselves. Bit operations on floating-point numbers have no meaning.
constexpr bool Defined(ReduceOp op, DataType type) {
  switch (op) {
    case ReduceOp::kAverage:
    case ReduceOp::kPreMulSum:
      return IsFloating(type);
    case ReduceOp::kBitOr:
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitXor:
      return !IsFloating(type);
    default:
      return true;
  }
}

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TYPES_H_
