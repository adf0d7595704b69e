#include "tests/cuda/gpu_data.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#include "collectives/reduce_kernels.h"
#include "tests/unit/collectives/element_bits.h"

namespace tandem {
namespace {

size_t Index(collectives::DataType type) { return static_cast<size_t>(type); }
size_t Index(collectives::ReduceOp op) { return static_cast<size_t>(op); }

// Multiples of 1/8 up to 4, which every floating-point type holds.
uint64_t SmallNumber(collectives::DataType type, Generator& random) {
  const double x = (static_cast<double>(random() % 65) - 32) / 8;
  const auto f32 = static_cast<float>(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &f32, sizeof(bits));
  uint64_t wide = 0;
  switch (type) {
    case collectives::DataType::kF32:
      return bits;
    case collectives::DataType::kF64:
      std::memcpy(&wide, &x, sizeof(wide));
      return wide;
    case collectives::DataType::kBF16:
      return bits >> 16;
    case collectives::DataType::kF16:
      if (x == 0) return bits >> 16;
      return (bits >> 16 & 0x8000) | (((bits >> 13) - (112 << 10)) & 0x7fff);
    default:
      return random() % 5;
  }
}

}  // namespace

Bytes RandomVector(collectives::DataType type, size_t count, Generator& random) {
  const size_t size = collectives::SizeOf(type);
  Bytes out(count * size);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t kind = random() % 16;
    uint64_t bits = kind < 11 ? SmallNumber(type, random) : kind < 14 ? random() : 0;
    if (kind == 15 && collectives::IsFloating(type)) bits = uint64_t{1} << (8 * size - 1);
    std::memcpy(&out[i * size], &bits, size);
  }
  return out;
}

Bytes ReferenceFold(collectives::ReduceOp op, collectives::DataType type, double scalar,
                    const std::vector<Bytes>& in) {
  const size_t count = in[0].size() / collectives::SizeOf(type);
  std::vector<Bytes> scaled = in;
  std::vector<const void*> pointers;
  for (Bytes& one : scaled) {
    if (op == collectives::ReduceOp::kPreMulSum) {
      collectives::kReduceBase.scale[Index(type)](one.data(), one.data(), count, scalar);
    }
    pointers.push_back(one.data());
  }
  Bytes out(in[0].size());
  collectives::kReduceBase.fold[Index(op)][Index(type)](out.data(), pointers.data(),
                                                        pointers.size(), count);
  if (op == collectives::ReduceOp::kAverage) {
    collectives::kReduceBase.scale[Index(type)](out.data(), out.data(), count, scalar);
  }
  return out;
}

std::string Difference(collectives::DataType type, const Bytes& got, const Bytes& want) {
  if (got.size() != want.size()) return "sizes differ";
  if (!got.empty() && std::memcmp(got.data(), want.data(), got.size()) == 0) return "";
  const size_t size = collectives::SizeOf(type);
  for (size_t at = 0; at < got.size(); at += size) {
    uint64_t x = 0, y = 0;
    std::memcpy(&x, &got[at], size);
    std::memcpy(&y, &want[at], size);
    if (SameElement(type, x, y)) continue;
    char text[128];
    std::snprintf(text, sizeof(text), "element %zu of %zu is %#llx, expected %#llx", at / size,
                  got.size() / size, static_cast<unsigned long long>(x),
                  static_cast<unsigned long long>(y));
    return text;
  }
  return "";
}

}  // namespace tandem
