// Every op on every type, in every variant this processor runs, against one scalar formula each
// written in double precision or exact integers; the rounding of 16-bit types by known cases; folds
// in rank order by what they must equal.
#include "collectives/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "collectives/reduce_kernels.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/fold.h"
#include "tests/test_seed.h"
#include "tests/unit/collectives/element_bits.h"

namespace tandem {
namespace {

using Bytes = std::vector<uint8_t>;

// --- The reference: bit patterns in and out, one element at a time.

// A format with `mantissa` bits after the point and this exponent bias, below 32 bits wide.
struct Format {
  int mantissa, bias;
  uint32_t infinity;
};
constexpr Format kHalf = {10, 15, 0x7c00};
constexpr Format kBrain = {7, 127, 0x7f80};

double Decode(Format f, uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fff;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (magnitude > f.infinity) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == f.infinity) return sign * std::numeric_limits<double>::infinity();
  const int exponent = static_cast<int>(magnitude >> f.mantissa);
  const double fraction = magnitude & ((1u << f.mantissa) - 1);
  const double one = std::ldexp(1.0, f.mantissa);
  const double value = exponent == 0 ? std::ldexp(fraction / one, 1 - f.bias)
                                     : std::ldexp(1 + fraction / one, exponent - f.bias);
  return sign * value;
}

// To the nearest, to even between two: counts in units of the last place.
uint16_t Encode(Format f, double value) {
  const uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<uint16_t>(f.infinity | 1);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | f.infinity);
  if (value == 0) return static_cast<uint16_t>(sign);
  const double magnitude = std::abs(value);
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent));
  const auto biased = static_cast<int64_t>(exponent + f.bias - 1) << f.mantissa;
  const int64_t bits = biased + static_cast<int64_t>(units);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, f.infinity));
}

template <class T>
T Load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <class T>
T LessOf(T a, T b, bool less) {
  if (a != a || b != b) return std::numeric_limits<T>::quiet_NaN();
  if (a == b) return (std::signbit(static_cast<double>(a)) == less) ? a : b;
  return (a < b) == less ? a : b;
}

double FloatingOf(collectives::ReduceOp op, double a, double b) {
  switch (op) {
    case collectives::ReduceOp::kProduct:
      return a * b;
    case collectives::ReduceOp::kMin:
    case collectives::ReduceOp::kMax:
      return LessOf(a, b, op == collectives::ReduceOp::kMin);
    case collectives::ReduceOp::kLogicalOr:
      return a != 0 || b != 0 ? 1 : 0;
    case collectives::ReduceOp::kLogicalAnd:
      return a != 0 && b != 0 ? 1 : 0;
    default:
      return a + b;
  }
}

__int128 IntegerOf(collectives::ReduceOp op, __int128 a, __int128 b) {
  switch (op) {
    case collectives::ReduceOp::kProduct:
      return a * b;
    case collectives::ReduceOp::kMin:
      return a < b ? a : b;
    case collectives::ReduceOp::kMax:
      return a < b ? b : a;
    case collectives::ReduceOp::kLogicalOr:
      return a != 0 || b != 0 ? 1 : 0;
    case collectives::ReduceOp::kLogicalAnd:
      return a != 0 && b != 0 ? 1 : 0;
    case collectives::ReduceOp::kBitOr:
      return a | b;
    case collectives::ReduceOp::kBitAnd:
      return a & b;
    case collectives::ReduceOp::kBitXor:
      return a ^ b;
    default:
      return a + b;
  }
}

// One element of `type` at a, one at b, the result as bits. Double rounds f32 sums and products
// correctly, since it has more than twice the digits.
uint64_t Expected(collectives::ReduceOp op, collectives::DataType type, const void* a,
                  const void* b) {
  switch (type) {
    case collectives::DataType::kF32:
      return std::bit_cast<uint32_t>(
          static_cast<float>(FloatingOf(op, Load<float>(a), Load<float>(b))));
    case collectives::DataType::kF64:
      return std::bit_cast<uint64_t>(FloatingOf(op, Load<double>(a), Load<double>(b)));
    case collectives::DataType::kF16:
    case collectives::DataType::kBF16: {
      const Format f = type == collectives::DataType::kF16 ? kHalf : kBrain;
      const double x = Decode(f, Load<uint16_t>(a)), y = Decode(f, Load<uint16_t>(b));
      return Encode(f, static_cast<float>(FloatingOf(op, x, y)));
    }
    case collectives::DataType::kI32:
      return static_cast<uint32_t>(IntegerOf(op, Load<int32_t>(a), Load<int32_t>(b)));
    case collectives::DataType::kI64:
      return static_cast<uint64_t>(IntegerOf(op, Load<int64_t>(a), Load<int64_t>(b)));
    case collectives::DataType::kU8:
      return static_cast<uint8_t>(IntegerOf(op, Load<uint8_t>(a), Load<uint8_t>(b)));
  }
  return 0;
}

uint64_t BitsAt(collectives::DataType type, const void* at) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, collectives::SizeOf(type));
  return bits;
}

// --- Inputs: any bits, numbers near one, and what formats treat specially.

uint64_t SpecialBits(collectives::DataType type, Random& random) {
  static constexpr uint64_t kF32[] = {0,          0x80000000, 1,          0x007fffff, 0x00800000,
                                      0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001};
  static constexpr uint64_t kF64[] = {0,
                                      1ull << 63,
                                      1,
                                      0x7fefffffffffffff,
                                      0x7ff0000000000000,
                                      0xfff0000000000000,
                                      0x7ff8000000000000};
  static constexpr uint64_t kF16[] = {0,      0x8000, 1,      0x3ff,  0x400, 0x7bff,
                                      0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x7c01};
  static constexpr uint64_t kBF16[] = {0,      0x8000, 1,      0x7f,   0x80,  0x7f7f,
                                       0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x7f81};
  static constexpr uint64_t kInteger[] = {0, 1, ~0ull, 1ull << 31, (1ull << 31) - 1, 1ull << 63};
  const auto pick = [&random](const auto& from) { return from[random.Uniform(std::size(from))]; };
  switch (type) {
    case collectives::DataType::kF32:
      return pick(kF32);
    case collectives::DataType::kF64:
      return pick(kF64);
    case collectives::DataType::kF16:
      return pick(kF16);
    case collectives::DataType::kBF16:
      return pick(kBF16);
    default:
      return pick(kInteger);
  }
}

uint64_t NearOne(collectives::DataType type, Random& random) {
  const double x = (random.NextDouble() - 0.5) * 8;
  switch (type) {
    case collectives::DataType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(x));
    case collectives::DataType::kF64:
      return std::bit_cast<uint64_t>(x);
    case collectives::DataType::kF16:
      return Encode(kHalf, x);
    case collectives::DataType::kBF16:
      return Encode(kBrain, x);
    default:
      return random.Uniform(4);
  }
}

Bytes Inputs(collectives::DataType type, size_t count, Random& random) {
  Bytes out(count * collectives::SizeOf(type) + 8);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t kind = random.Uniform(4);
    const uint64_t bits = kind == 0   ? SpecialBits(type, random)
                          : kind == 1 ? random.Next64()
                                      : NearOne(type, random);
    std::memcpy(&out[i * collectives::SizeOf(type)], &bits, collectives::SizeOf(type));
  }
  out.resize(count * collectives::SizeOf(type));
  return out;
}

std::vector<std::pair<std::string, const collectives::ReduceKernels*>> Variants() {
  std::vector<std::pair<std::string, const collectives::ReduceKernels*>> variants = {
      {"base", &collectives::kReduceBase}};
#if defined(__x86_64__)
  if (collectives::HasAvx2()) variants.emplace_back("avx2", &collectives::kReduceAvx2);
  if (collectives::HasAvx512()) variants.emplace_back("avx512", &collectives::kReduceAvx512);
#endif
  return variants;
}

// Bytes at a chosen distance from a multiple of 64, with guards on both sides.
class Placed {
 public:
  Placed(const Bytes& content, size_t offset)
      : size_(content.size()), all_(kGuard + 64 + offset + content.size() + kGuard, 0xa5) {
    const auto address = reinterpret_cast<uintptr_t>(all_.data() + kGuard);
    begin_ = kGuard + (64 - address % 64) % 64 + offset;
    if (size_ > 0) std::memcpy(data(), content.data(), size_);
  }
  uint8_t* data() { return all_.data() + begin_; }
  bool GuardsIntact() const {
    for (size_t i = 0; i < all_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && all_[i] != 0xa5) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t size_, begin_;
  Bytes all_;
};

using OpAndType = std::tuple<collectives::ReduceOp, collectives::DataType>;

std::string TestName(const ::testing::TestParamInfo<OpAndType>& info) {
  return absl::StrCat(collectives::Name(std::get<0>(info.param)), "_",
                      collectives::Name(std::get<1>(info.param)));
}

class ReduceTest : public ::testing::TestWithParam<OpAndType> {
 protected:
  ReduceTest() : random_(TestSeed()) {}

  void SetUp() override {
    if (!collectives::Defined(op_, type_)) return;
    RecordProperty("seed", std::to_string(TestSeed()));
  }

  // Compares `out` with the reference over a and b.
  void ExpectReduced(const uint8_t* out, const Bytes& a, const Bytes& b) {
    const size_t width = collectives::SizeOf(type_);
    for (size_t at = 0; at < a.size(); at += width) {
      const uint64_t want = Expected(op_, type_, &a[at], &b[at]);
      const uint64_t got = BitsAt(type_, out + at);
      ASSERT_TRUE(SameElement(type_, got, want))
          << "element " << at / width << ": " << std::hex << BitsAt(type_, &a[at]) << ", "
          << BitsAt(type_, &b[at]) << " gave " << got << ", expected " << want << std::dec
          << "; rerun with --seed=" << TestSeed();
    }
  }

  const collectives::ReduceOp op_ = std::get<0>(GetParam());
  const collectives::DataType type_ = std::get<1>(GetParam());
  Random random_;
};

TEST_P(ReduceTest, AgreesWithScalarsAtEverySizeAndOffset) {
  if (!collectives::Defined(op_, type_)) {
    for (const auto& [name, kernels] : Variants()) {
      EXPECT_EQ(kernels->reduce[size_t(op_)][size_t(type_)], nullptr) << name;
    }
    return;
  }
  for (const auto& [name, kernels] : Variants()) {
    SCOPED_TRACE(name);
    const auto reduce = kernels->reduce[size_t(op_)][size_t(type_)];
    for (size_t count = 0; count <= 130; ++count) {
      const Bytes a = Inputs(type_, count, random_), b = Inputs(type_, count, random_);
      for (size_t offset = 0; offset < 8; ++offset) {
        Placed out(Bytes(a.size()), offset), x(a, random_.Uniform(8)), y(b, random_.Uniform(8));
        reduce(out.data(), x.data(), y.data(), count);
        ASSERT_NO_FATAL_FAILURE(ExpectReduced(out.data(), a, b));
        ASSERT_TRUE(out.GuardsIntact());
      }
    }
  }
}

TEST_P(ReduceTest, OutputMayBeEitherInput) {
  if (!collectives::Defined(op_, type_)) return;
  for (const size_t count : {1, 5, 64, 1000}) {
    const Bytes a = Inputs(type_, count, random_), b = Inputs(type_, count, random_);
    Placed x(a, 1), y(b, 3);
    collectives::Reduce(op_, type_, x.data(), x.data(), y.data(), count);
    ASSERT_NO_FATAL_FAILURE(ExpectReduced(x.data(), a, b));
    Placed z(a, 0);
    collectives::Reduce(op_, type_, y.data(), z.data(), y.data(), count);
    ASSERT_NO_FATAL_FAILURE(ExpectReduced(y.data(), a, b));
  }
}

// Which rank is on the left differs between algorithms and ranks.
TEST_P(ReduceTest, IsCommutative) {
  if (!collectives::Defined(op_, type_)) return;
  const size_t count = 2000, width = collectives::SizeOf(type_);
  const Bytes a = Inputs(type_, count, random_), b = Inputs(type_, count, random_);
  Bytes ab(a.size()), ba(a.size());
  collectives::Reduce(op_, type_, ab.data(), a.data(), b.data(), count);
  collectives::Reduce(op_, type_, ba.data(), b.data(), a.data(), count);
  for (size_t at = 0; at < a.size(); at += width) {
    ASSERT_TRUE(SameElement(type_, BitsAt(type_, &ab[at]), BitsAt(type_, &ba[at])));
  }
}

// For 16-bit types the fold rounds once, so only two contributions must agree with Reduce there.
TEST_P(ReduceTest, FoldEqualsRepeatedReduce) {
  if (!collectives::Defined(op_, type_)) return;
  for (const auto& [name, kernels] : Variants()) {
    SCOPED_TRACE(name);
    for (const size_t inputs : {1, 2, 3, 8}) {
      if (collectives::SizeOf(type_) == 2 && inputs > 2) continue;
      for (const size_t count : {0, 1, 31, 130, 1003}) {
        std::vector<Bytes> in;
        std::vector<const void*> pointers;
        for (size_t k = 0; k < inputs; ++k) in.push_back(Inputs(type_, count, random_));
        for (const Bytes& one : in) pointers.push_back(one.data());
        Bytes want = in[0], got(want.size());
        for (size_t k = 1; k < inputs; ++k) {
          collectives::Reduce(op_, type_, want.data(), want.data(), in[k].data(), count);
        }
        kernels->fold[size_t(op_)][size_t(type_)](got.data(), pointers.data(), inputs, count);
        for (size_t at = 0; at < want.size(); at += collectives::SizeOf(type_)) {
          ASSERT_TRUE(SameElement(type_, BitsAt(type_, &got[at]), BitsAt(type_, &want[at])))
              << inputs << " inputs, element " << at / collectives::SizeOf(type_);
        }
      }
    }
  }
}

// Cutting a vector anywhere changes no bit: what reproducible collectives rest on.
TEST_P(ReduceTest, FoldDoesNotDependOnCuts) {
  if (!collectives::Defined(op_, type_)) return;
  const size_t count = 777, width = collectives::SizeOf(type_), inputs = 5;
  std::vector<Bytes> in;
  for (size_t k = 0; k < inputs; ++k) in.push_back(Inputs(type_, count, random_));
  const auto fold = [&](Bytes& out, size_t begin, size_t end) {
    std::vector<const void*> pointers;
    for (const Bytes& one : in) pointers.push_back(one.data() + begin * width);
    collectives::FoldInOrder(op_, type_, out.data() + begin * width, pointers, end - begin);
  };
  Bytes whole(count * width), cut(count * width);
  fold(whole, 0, count);
  for (size_t begin = 0; begin < count;) {
    const size_t end = std::min(count, begin + 1 + random_.Uniform(100));
    fold(cut, begin, end);
    begin = end;
  }
  for (size_t at = 0; at < whole.size(); at += width) {
    ASSERT_TRUE(SameElement(type_, BitsAt(type_, &cut[at]), BitsAt(type_, &whole[at])));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReduceTest,
                         ::testing::Combine(::testing::ValuesIn(collectives::kReduceOps),
                                            ::testing::ValuesIn(collectives::kDataTypes)),
                         TestName);

// --- 16-bit types.

uint16_t Add16(collectives::DataType type, uint16_t a, uint16_t b) {
  uint16_t out = 0;
  collectives::Reduce(collectives::ReduceOp::kSum, type, &out, &a, &b, 1);
  return out;
}

TEST(Reduce16Test, RoundsToNearestEven) {
  const auto half = [](double a, double b) {
    return Decode(kHalf, Add16(collectives::DataType::kF16, Encode(kHalf, a), Encode(kHalf, b)));
  };
  EXPECT_EQ(half(2048, 1), 2048);              // 2049 lies between 2048 and 2050: to even, down
  EXPECT_EQ(half(2050, 1), 2052);              // 2051: to even, up
  EXPECT_EQ(half(65504, 15), 65504);           // still below the middle to what would be 65536
  EXPECT_TRUE(std::isinf(half(65504, 16)));    // the middle: infinity is "even"
  EXPECT_EQ(half(0x1p-24, 0x1p-24), 0x1p-23);  // subnormal
  const auto brain = [](double a, double b) {
    return Decode(kBrain,
                  Add16(collectives::DataType::kBF16, Encode(kBrain, a), Encode(kBrain, b)));
  };
  EXPECT_EQ(brain(256, 1), 256);
  EXPECT_EQ(brain(258, 1), 260);
  EXPECT_EQ(Add16(collectives::DataType::kBF16, 0x7f7f, 0x7f7f),
            0x7f80);  // the largest twice is infinity
  EXPECT_EQ(Add16(collectives::DataType::kBF16, 0x0001, 0x0001), 0x0002);  // subnormal
}

TEST(Reduce16Test, NanStaysNanAndInfinityStaysInfinity) {
  for (const auto& [type, infinity] : {std::pair{collectives::DataType::kF16, 0x7c00},
                                       std::pair{collectives::DataType::kBF16, 0x7f80}}) {
    for (int nan = infinity + 1; nan < 0x8000; ++nan) {
      ASSERT_TRUE(IsNan(type, Add16(type, static_cast<uint16_t>(nan), 0))) << nan;
      ASSERT_TRUE(IsNan(type, Add16(type, 0, static_cast<uint16_t>(nan | 0x8000)))) << nan;
    }
    const auto inf = static_cast<uint16_t>(infinity);
    EXPECT_EQ(Add16(type, inf, 0x3c00), inf);
    EXPECT_TRUE(IsNan(type, Add16(type, inf, inf | 0x8000)));
  }
}

// All values there are, through both conversions and back, in every variant.
TEST(Reduce16Test, EveryValueSurvives) {
  std::vector<uint16_t> all(65536), out(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const auto& [name, kernels] : Variants()) {
    for (const collectives::DataType type :
         {collectives::DataType::kF16, collectives::DataType::kBF16}) {
      kernels->scale[size_t(type)](out.data(), all.data(), all.size(), 1.0);
      for (size_t i = 0; i < all.size(); ++i) {
        ASSERT_TRUE(SameElement(type, out[i], all[i]))
            << name << " " << collectives::Name(type) << " " << i;
      }
    }
  }
}

// Products of random pairs reach the rounding of floats everywhere in the range.
TEST(Reduce16Test, RoundsAllOverTheRange) {
  Random random(TestSeed());
  const size_t count = 200000;
  std::vector<uint16_t> a(count), b(count), out(count);
  for (size_t i = 0; i < count; ++i) {
    a[i] = static_cast<uint16_t>(random.Next64());
    b[i] = static_cast<uint16_t>(random.Next64());
  }
  for (const auto& [name, kernels] : Variants()) {
    for (const collectives::DataType type :
         {collectives::DataType::kF16, collectives::DataType::kBF16}) {
      kernels->reduce[size_t(collectives::ReduceOp::kProduct)][size_t(type)](out.data(), a.data(),
                                                                             b.data(), count);
      for (size_t i = 0; i < count; ++i) {
        const uint64_t want = Expected(collectives::ReduceOp::kProduct, type, &a[i], &b[i]);
        ASSERT_TRUE(SameElement(type, out[i], want))
            << name << " " << collectives::Name(type) << " " << std::hex << a[i] << " * " << b[i]
            << " gave " << out[i] << ", expected " << want << std::dec
            << "; rerun with --seed=" << TestSeed();
      }
    }
  }
}

// 1 + 1/256 four times: each hop would round back to 1, the fold keeps them until the end.
TEST(Reduce16Test, AFoldRoundsOnce) {
  const uint16_t one = Encode(kBrain, 1), small = Encode(kBrain, 0x1p-8);
  const void* const in[] = {&one, &small, &small, &small, &small};
  uint16_t out = 0, hops = one;
  collectives::FoldInOrder(collectives::ReduceOp::kSum, collectives::DataType::kBF16, &out, in, 1);
  EXPECT_EQ(Decode(kBrain, out), 1 + 4 * 0x1p-8);
  for (int k = 0; k < 4; ++k) hops = Add16(collectives::DataType::kBF16, hops, small);
  EXPECT_EQ(Decode(kBrain, hops), 1);
}

// --- The rest.

TEST(FoldInOrderTest, GivesTheBitsOfFoldAdd) {
  Random random(TestSeed());
  const size_t count = 1021;
  std::vector<std::vector<float>> in(7, std::vector<float>(count));
  std::vector<const void*> pointers;
  for (auto& one : in) {
    for (float& x : one) x = static_cast<float>(random.Normal() * std::exp(4 * random.Normal()));
    pointers.push_back(one.data());
  }
  std::vector<float> want = in[0], got(count);
  for (size_t k = 1; k < in.size(); ++k) optim::FoldAdd(want.data(), in[k].data(), count);
  collectives::FoldInOrder(collectives::ReduceOp::kSum, collectives::DataType::kF32, got.data(),
                           pointers, count);
  EXPECT_EQ(std::memcmp(want.data(), got.data(), count * sizeof(float)), 0);
  collectives::FoldInOrder(collectives::ReduceOp::kSum, collectives::DataType::kF32, in[3].data(),
                           pointers, count);  // onto an input
  EXPECT_EQ(std::memcmp(want.data(), in[3].data(), count * sizeof(float)), 0);
}

TEST(ScaleTest, MultipliesOnceAtEverySizeAndOffset) {
  Random random(TestSeed());
  for (const auto& [name, kernels] : Variants()) {
    SCOPED_TRACE(name);
    for (const collectives::DataType type : collectives::kDataTypes) {
      if (!collectives::IsFloating(type)) {
        EXPECT_EQ(kernels->scale[size_t(type)], nullptr);
        continue;
      }
      const double factor =
          type == collectives::DataType::kF64 ? 1.0 / 3 : static_cast<float>(1.0 / 3);
      for (size_t count = 0; count <= 130; ++count) {
        const Bytes in = Inputs(type, count, random);
        Placed out(Bytes(in.size()), random.Uniform(8)), x(in, random.Uniform(8));
        kernels->scale[size_t(type)](out.data(), x.data(), count, 1.0 / 3);
        ASSERT_TRUE(out.GuardsIntact());
        for (size_t i = 0; i < count; ++i) {
          const size_t at = i * collectives::SizeOf(type);
          uint64_t want = 0;
          if (type == collectives::DataType::kF64) {
            want = std::bit_cast<uint64_t>(Load<double>(&in[at]) * factor);
          } else if (type == collectives::DataType::kF32) {
            want = std::bit_cast<uint32_t>(static_cast<float>(Load<float>(&in[at]) * factor));
          } else {
            const Format f = type == collectives::DataType::kF16 ? kHalf : kBrain;
            want = Encode(f, static_cast<float>(Decode(f, Load<uint16_t>(&in[at])) * factor));
          }
          ASSERT_TRUE(SameElement(type, BitsAt(type, out.data() + at), want))
              << collectives::Name(type) << " " << i << "; rerun with --seed=" << TestSeed();
        }
      }
    }
  }
}

TEST(ScaleTest, InPlaceAndAside) {
  float data[3] = {1, 2, -6}, out[3] = {};
  collectives::ScaleCopy(collectives::DataType::kF32, out, data, 3, 0.5);
  EXPECT_THAT(out, ::testing::ElementsAre(0.5f, 1, -3));
  collectives::Scale(collectives::DataType::kF32, data, 3, 0.25);
  EXPECT_THAT(data, ::testing::ElementsAre(0.25f, 0.5f, -1.5f));
}

TEST(TypesTest, NamesParseBack) {
  for (const collectives::DataType type : collectives::kDataTypes)
    EXPECT_EQ(collectives::ParseDataType(collectives::Name(type)), type);
  for (const collectives::ReduceOp op : collectives::kReduceOps)
    EXPECT_EQ(collectives::ParseReduceOp(collectives::Name(op)), op);
  EXPECT_FALSE(collectives::ParseDataType("f8").has_value());
  EXPECT_FALSE(collectives::ParseReduceOp("").has_value());
  EXPECT_TRUE(collectives::IsDataType(collectives::kDataTypeCount - 1));
  EXPECT_FALSE(collectives::IsDataType(collectives::kDataTypeCount));
  EXPECT_FALSE(collectives::IsReduceOp(collectives::kReduceOpCount));
}

TEST(TypesTest, FractionsAreForFloatsAndBitsForIntegers) {
  EXPECT_FALSE(collectives::Defined(collectives::ReduceOp::kAverage, collectives::DataType::kI32));
  EXPECT_FALSE(collectives::Defined(collectives::ReduceOp::kPreMulSum, collectives::DataType::kU8));
  EXPECT_FALSE(collectives::Defined(collectives::ReduceOp::kBitOr, collectives::DataType::kBF16));
  EXPECT_TRUE(collectives::Defined(collectives::ReduceOp::kBitOr, collectives::DataType::kI64));
  EXPECT_TRUE(collectives::Defined(collectives::ReduceOp::kAverage, collectives::DataType::kF16));
  EXPECT_TRUE(
      collectives::Defined(collectives::ReduceOp::kLogicalAnd, collectives::DataType::kF64));
}

TEST(ReduceDeathTest, RefusesWhatIsNotDefined) {
  float x = 1;
  const void* const in[] = {&x};
  EXPECT_DEATH(collectives::Reduce(collectives::ReduceOp::kBitOr, collectives::DataType::kF32, &x,
                                   &x, &x, 1),
               "CHECK failed");
  EXPECT_DEATH(collectives::FoldInOrder(collectives::ReduceOp::kAverage,
                                        collectives::DataType::kI32, &x, in, 1),
               "CHECK failed");
  EXPECT_DEATH(
      collectives::FoldInOrder(collectives::ReduceOp::kSum, collectives::DataType::kF32, &x, {}, 1),
      "CHECK failed");
  EXPECT_DEATH(collectives::Scale(collectives::DataType::kU8, &x, 1, 2.0), "CHECK failed");
}

// --- Between f32 and 16 bits.

class ConversionTest : public ::testing::TestWithParam<collectives::DataType> {
 protected:
  const collectives::DataType type_ = GetParam();
  const Format format_ = type_ == collectives::DataType::kF16 ? kHalf : kBrain;
};

TEST_P(ConversionTest, NarrowRoundsAProductOnce) {
  Random random(TestSeed());
  constexpr float kFactor = 0.375f;
  for (const auto& [name, kernels] : Variants()) {
    SCOPED_TRACE(name);
    for (const size_t count : {0, 1, 7, 16, 33, 5000}) {
      std::vector<float> in(count);
      for (float& x : in) {
        // Of any bits, and around the numbers that 16 bits can hold.
        x = std::bit_cast<float>(static_cast<uint32_t>(random.Next64()));
        if (random.Uniform(2) == 0)
          x = std::ldexp(1 + x / std::fabs(x) / 3, static_cast<int>(random.Uniform(45)) - 28);
      }
      std::vector<uint16_t> out(count + 1, 0xa5a5);
      kernels->narrow[size_t(type_)](out.data(), in.data(), count, kFactor);
      for (size_t i = 0; i < count; ++i) {
        const uint16_t want = Encode(format_, static_cast<double>(in[i] * kFactor));
        ASSERT_TRUE(SameElement(type_, out[i], want)) << in[i] << ": " << out[i] << ", " << want;
      }
      EXPECT_EQ(out[count], 0xa5a5);
    }
  }
}

TEST_P(ConversionTest, WidenIsExactForEveryPattern) {
  std::vector<uint16_t> in(1 << 16);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
  for (const auto& [name, kernels] : Variants()) {
    SCOPED_TRACE(name);
    std::vector<float> out(in.size());
    kernels->widen[size_t(type_)](out.data(), in.data(), in.size(), 4);
    for (size_t i = 0; i < in.size(); ++i) {
      const auto want = static_cast<float>(4 * Decode(format_, in[i]));
      ASSERT_TRUE(SameElement(collectives::DataType::kF32, std::bit_cast<uint32_t>(out[i]),
                              std::bit_cast<uint32_t>(want)))
          << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SixteenBits, ConversionTest,
                         ::testing::Values(collectives::DataType::kF16,
                                           collectives::DataType::kBF16));

}  // namespace
}  // namespace tandem
