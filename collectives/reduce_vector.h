// The loops of reduce_kernels.h, over vectors as wide as the including file is compiled for.
//
// Only reduce_base.cc, reduce_avx2.cc and reduce_avx512.cc include this header. Everything here is
// in an unnamed namespace on purpose, and no library function is called. If a function were shared
// between files that are compiled for different instructions, the linker could pick the version
// that this processor cannot run.
//
// The loops use the compiler's vector types and do not rely on its vectoriser, which gives up if
// `out` may be an input. Here `out` may be an input, because each vector is read whole before it is
// written.
#ifndef TANDEM_COLLECTIVES_REDUCE_VECTOR_H_
#define TANDEM_COLLECTIVES_REDUCE_VECTOR_H_

#include <cstddef>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "collectives/reduce_kernels.h"

#define TANDEM_INLINE inline __attribute__((always_inline))

namespace tandem::collectives {
namespace {

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

// The AVX-512 intrinsics below are used in their masked forms, with all lanes on: for the unmasked
// forms g++ 12 warns about its own header.

template <class T, size_t kBytes = kVectorBytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <class T, size_t kBytes = kVectorBytes>
using Vector = typename VectorOf<T, kBytes>::type;

template <size_t kBytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = uint8_t;
};
template <>
struct UnsignedOf<4> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = uint64_t;
};

// --- Element types in memory: Load widens kLanes elements to a vector, Store rounds it back.

template <class T, bool kIsFloating>
struct Plain {
  using Lane = T;
  using V = Vector<T>;
  using Bits = Vector<typename UnsignedOf<sizeof(T)>::type>;
  static constexpr bool kFloating = kIsFloating;
  static constexpr size_t kElementBytes = sizeof(T);
  static constexpr size_t kLanes = kVectorBytes / sizeof(T);

  static TANDEM_INLINE V Load(const unsigned char* p) {
    V v;
    __builtin_memcpy(&v, p, sizeof(v));
    return v;
  }
  static TANDEM_INLINE void Store(unsigned char* p, V v) { __builtin_memcpy(p, &v, sizeof(v)); }
};

using Words = Vector<uint32_t>;
using Floats = Vector<float>;
using Halves = Vector<uint16_t, kVectorBytes / 2>;

TANDEM_INLINE Words Choose(Words mask, Words yes, Words no) {  // mask: all ones or all zeros
  return (yes & mask) | (no & ~mask);
}

// The common part of the 16-bit types, which are floats between Load and Store.
struct Widened {
  using Lane = float;
  using V = Floats;
  using Bits = Words;
  static constexpr bool kFloating = true;
  static constexpr size_t kElementBytes = 2;
  static constexpr size_t kLanes = kVectorBytes / sizeof(float);

  // __builtin_convertvector would do the same, but g++ 12 compiles it to slower code.
  static TANDEM_INLINE Words LoadWords(const unsigned char* p) {
    Halves halves;
    __builtin_memcpy(&halves, p, sizeof(halves));
#if defined(__AVX512F__)
    return reinterpret_cast<Words>(
        _mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(halves)));
#elif defined(__AVX2__)
    return reinterpret_cast<Words>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(halves)));
#else
    return __builtin_convertvector(halves, Words);
#endif
  }
  // Requires words below 2^16.
  static TANDEM_INLINE void StoreWords(unsigned char* p, Words words) {
#if defined(__AVX512F__)
    const __m256i halves = _mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(words));
#elif defined(__AVX2__)
    const __m256i wide = reinterpret_cast<__m256i>(words);
    const __m128i halves =
        _mm_packus_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
#else
    const Halves halves = __builtin_convertvector(words, Halves);
#endif
    __builtin_memcpy(p, &halves, sizeof(halves));
  }
};

struct BFloat16 : Widened {
  static TANDEM_INLINE V Load(const unsigned char* p) {
    return reinterpret_cast<V>(LoadWords(p) << 16);
  }
  // Rounds to nearest even by an integer addition. A carry out of the mantissa raises the exponent,
  // up to infinity, as it should. Only a NaN could turn into something else that way: its bits are
  // cut instead, and the quiet bit is set so that it stays a NaN.
  static TANDEM_INLINE void Store(unsigned char* p, V v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words nan = reinterpret_cast<Words>(v != v);
    StoreWords(p, Choose(nan, (bits >> 16) | 0x40u, rounded));
  }
};

struct Float16 : Widened {
#if defined(__F16C__)
  // Hides the value from the optimizer: clang 14 would move selections behind the narrowing, and do
  // them one by one.
  static TANDEM_INLINE V Opaque(V v) {
    asm("" : "+v"(v));
    return v;
  }
#endif
#if defined(__AVX512F__)
  static TANDEM_INLINE V Load(const unsigned char* p) {
    return Opaque(reinterpret_cast<V>(
        _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))));
  }
  static TANDEM_INLINE void Store(unsigned char* p, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_maskz_cvtps_ph(0xffff, reinterpret_cast<__m512>(Opaque(v)),
                                              _MM_FROUND_TO_NEAREST_INT));
  }
#elif defined(__F16C__) && defined(__AVX2__)
  static TANDEM_INLINE V Load(const unsigned char* p) {
    return Opaque(
        reinterpret_cast<V>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
  }
  static TANDEM_INLINE void Store(unsigned char* p, V v) {
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm256_cvtps_ph(reinterpret_cast<__m256>(Opaque(v)), _MM_FROUND_TO_NEAREST_INT));
  }
#else
  // Exponent and mantissa are shifted into place. Then the bias of the exponent is corrected.
  // Normal numbers: by an addition. Subnormal numbers: by a subtraction, which also normalises
  // them, since they are normal numbers in float.
  static TANDEM_INLINE V Load(const unsigned char* p) {
    const Words half = LoadWords(p);
    const Words magnitude = (half & 0x7fffu) << 13;
    const Words exponent = magnitude & (0x1fu << 23);
    const Words normal = magnitude + ((127u - 15u) << 23);
    const Words special = magnitude | (0xffu << 23) |  // infinity; NaN, made quiet
                          (reinterpret_cast<Words>((half & 0x3ffu) != 0u) & (1u << 22));
    const Words smallest = Words{} + (113u << 23);  // 2^-14
    const Words subnormal = reinterpret_cast<Words>(reinterpret_cast<V>(magnitude | smallest) -
                                                    reinterpret_cast<V>(smallest));
    Words out = Choose(reinterpret_cast<Words>(exponent == (0x1fu << 23)), special, normal);
    out = Choose(reinterpret_cast<Words>(exponent == 0u), subnormal, out);
    return reinterpret_cast<V>(out | ((half & 0x8000u) << 16));
  }
  // Below 2^-14 a float addition does the rounding: next to 0.5 the last bit of a float is worth
  // 2^-24, the smallest subnormal. Above, an integer carry rounds, as for bf16. Numbers of 65520
  // and more become infinity.
  static TANDEM_INLINE void Store(unsigned char* p, V v) {
    const Words bits = reinterpret_cast<Words>(v);
    const Words magnitude = bits & 0x7fffffffu;
    const Words half = Words{} + (126u << 23);  // 0.5
    const Words subnormal =
        reinterpret_cast<Words>(reinterpret_cast<V>(magnitude) + reinterpret_cast<V>(half)) - half;
    const Words normal =
        (magnitude - ((127u - 15u) << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const Words nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
    Words out = Choose(reinterpret_cast<Words>(magnitude < (113u << 23)), subnormal, normal);
    out = Choose(reinterpret_cast<Words>(magnitude >= (143u << 23)), Words{} + 0x7c00u, out);
    out = Choose(reinterpret_cast<Words>(magnitude > (0xffu << 23)), nan, out);
    StoreWords(p, out | ((bits >> 16) & 0x8000u));
  }
#endif
};

// --- Ops on one vector. Integers are added and multiplied unsigned: they wrap.

template <class E>
struct Sum {
  using V = typename E::V;
  using Bits = typename E::Bits;
  static TANDEM_INLINE V Of(V a, V b) {
    if constexpr (E::kFloating) return a + b;
    return reinterpret_cast<V>(reinterpret_cast<Bits>(a) + reinterpret_cast<Bits>(b));
  }
};

template <class E>
struct Product {
  using V = typename E::V;
  using Bits = typename E::Bits;
  static TANDEM_INLINE V Of(V a, V b) {
    if constexpr (E::kFloating) return a * b;
    return reinterpret_cast<V>(reinterpret_cast<Bits>(a) * reinterpret_cast<Bits>(b));
  }
};

// If neither number is less, they are equal or one is NaN. Or-ing their bits then gives the number
// if both are the same, the negative zero of two zeros, and a NaN if one is a NaN.
template <class E>
struct Min {
  using V = typename E::V;
  using Bits = typename E::Bits;
  static TANDEM_INLINE V Of(V a, V b) {
    const Bits x = reinterpret_cast<Bits>(a), y = reinterpret_cast<Bits>(b);
    const Bits a_less = reinterpret_cast<Bits>(a < b), b_less = reinterpret_cast<Bits>(b < a);
    return reinterpret_cast<V>((x & ~b_less) | (y & ~a_less));
  }
};

template <class E>
struct Max {
  using V = typename E::V;
  using Bits = typename E::Bits;
  static TANDEM_INLINE V Negate(V v) {
    return reinterpret_cast<V>(reinterpret_cast<Bits>(v) ^
                               (Bits{} + (typename UnsignedOf<sizeof(typename E::Lane)>::type{1}
                                          << (8 * sizeof(typename E::Lane) - 1))));
  }
  static TANDEM_INLINE V Of(V a, V b) {
    if constexpr (E::kFloating) return Negate(Min<E>::Of(Negate(a), Negate(b)));
    const Bits x = reinterpret_cast<Bits>(a), y = reinterpret_cast<Bits>(b);
    const Bits a_less = reinterpret_cast<Bits>(a < b), b_less = reinterpret_cast<Bits>(b < a);
    return reinterpret_cast<V>((x & ~a_less) | (y & ~b_less));
  }
};

template <class E>
TANDEM_INLINE typename E::V OneWhere(typename E::Bits mask) {
  using Bits = typename E::Bits;
  const typename E::V one = typename E::V{} + typename E::Lane{1};
  return reinterpret_cast<typename E::V>(reinterpret_cast<Bits>(one) & mask);
}

template <class E>
TANDEM_INLINE typename E::Bits NotZero(typename E::V v) {
  return reinterpret_cast<typename E::Bits>(v != typename E::V{});
}

template <class E>
struct LogicalOr {
  static TANDEM_INLINE typename E::V Of(typename E::V a, typename E::V b) {
    return OneWhere<E>(NotZero<E>(a) | NotZero<E>(b));
  }
};

template <class E>
struct LogicalAnd {
  static TANDEM_INLINE typename E::V Of(typename E::V a, typename E::V b) {
    return OneWhere<E>(NotZero<E>(a) & NotZero<E>(b));
  }
};

template <class E>
struct BitOr {
  static TANDEM_INLINE typename E::V Of(typename E::V a, typename E::V b) { return a | b; }
};

template <class E>
struct BitAnd {
  static TANDEM_INLINE typename E::V Of(typename E::V a, typename E::V b) { return a & b; }
};

template <class E>
struct BitXor {
  static TANDEM_INLINE typename E::V Of(typename E::V a, typename E::V b) { return a ^ b; }
};

// --- Loops. The last elements, less than a vector, go through a padded copy.

template <class E>
TANDEM_INLINE typename E::V LoadSome(const unsigned char* p, size_t bytes) {
  unsigned char padded[E::kLanes * E::kElementBytes] = {};
  __builtin_memcpy(padded, p, bytes);
  return E::Load(padded);
}

template <class E>
TANDEM_INLINE void StoreSome(unsigned char* p, typename E::V v, size_t bytes) {
  unsigned char padded[E::kLanes * E::kElementBytes];
  E::Store(padded, v);
  __builtin_memcpy(p, padded, bytes);
}

template <class E, class Op>
void ReduceLoop(void* out, const void* a, const void* b, size_t count) {
  constexpr size_t kStep = E::kLanes * E::kElementBytes;
  auto* o = static_cast<unsigned char*>(out);
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  const size_t bytes = count * E::kElementBytes;
  size_t at = 0;
  for (; at + kStep <= bytes; at += kStep)
    E::Store(o + at, Op::Of(E::Load(x + at), E::Load(y + at)));
  if (const size_t rest = bytes - at; rest > 0) {
    StoreSome<E>(o + at, Op::Of(LoadSome<E>(x + at, rest), LoadSome<E>(y + at, rest)), rest);
  }
}

template <class E, class Op>
void FoldLoop(void* out, const void* const* in, size_t inputs, size_t count) {
  constexpr size_t kStep = E::kLanes * E::kElementBytes;
  constexpr size_t kUnroll = 4;  // vectors per round; makes walking the list of inputs cheap
  const auto at_input = [in](size_t k) { return static_cast<const unsigned char*>(in[k]); };
  auto* o = static_cast<unsigned char*>(out);
  const size_t bytes = count * E::kElementBytes;
  size_t at = 0;
  for (; at + kUnroll * kStep <= bytes; at += kUnroll * kStep) {
    typename E::V sum[kUnroll];
    for (size_t u = 0; u < kUnroll; ++u) sum[u] = E::Load(at_input(0) + at + u * kStep);
    for (size_t k = 1; k < inputs; ++k) {
      const unsigned char* const p = at_input(k) + at;
      for (size_t u = 0; u < kUnroll; ++u) sum[u] = Op::Of(sum[u], E::Load(p + u * kStep));
    }
    for (size_t u = 0; u < kUnroll; ++u) E::Store(o + at + u * kStep, sum[u]);
  }
  while (at < bytes) {
    const size_t some = bytes - at < kStep ? bytes - at : kStep;
    typename E::V sum = LoadSome<E>(at_input(0) + at, some);
    for (size_t k = 1; k < inputs; ++k) sum = Op::Of(sum, LoadSome<E>(at_input(k) + at, some));
    StoreSome<E>(o + at, sum, some);
    at += some;
  }
}

// Converts from one type to another with the same number of lanes, or to the same type, and
// multiplies.
template <class To, class From>
void ScaleLoop(void* out, const void* in, size_t count, double factor) {
  static_assert(To::kLanes == From::kLanes);
  constexpr size_t kStep = From::kLanes, kTo = To::kElementBytes, kFrom = From::kElementBytes;
  const auto by = static_cast<typename From::Lane>(factor);
  auto* o = static_cast<unsigned char*>(out);
  const auto* x = static_cast<const unsigned char*>(in);
  size_t i = 0;
  for (; i + kStep <= count; i += kStep) To::Store(o + i * kTo, From::Load(x + i * kFrom) * by);
  if (const size_t rest = count - i; rest > 0) {
    StoreSome<To>(o + i * kTo, LoadSome<From>(x + i * kFrom, rest * kFrom) * by, rest * kTo);
  }
}

// --- The table.

template <class E, template <class> class Op>
constexpr void Add(ReduceKernels& kernels, ReduceOp op, DataType type) {
  kernels.reduce[static_cast<size_t>(op)][static_cast<size_t>(type)] = &ReduceLoop<E, Op<E>>;
  kernels.fold[static_cast<size_t>(op)][static_cast<size_t>(type)] = &FoldLoop<E, Op<E>>;
}

template <class E>
constexpr void AddType(ReduceKernels& kernels, DataType type) {
  Add<E, Sum>(kernels, ReduceOp::kSum, type);
  Add<E, Product>(kernels, ReduceOp::kProduct, type);
  Add<E, Min>(kernels, ReduceOp::kMin, type);
  Add<E, Max>(kernels, ReduceOp::kMax, type);
  Add<E, LogicalOr>(kernels, ReduceOp::kLogicalOr, type);
  Add<E, LogicalAnd>(kernels, ReduceOp::kLogicalAnd, type);
  if constexpr (E::kFloating) {
    Add<E, Sum>(kernels, ReduceOp::kAverage, type);
    Add<E, Sum>(kernels, ReduceOp::kPreMulSum, type);
    kernels.scale[static_cast<size_t>(type)] = &ScaleLoop<E, E>;
  } else {
    Add<E, BitOr>(kernels, ReduceOp::kBitOr, type);
    Add<E, BitAnd>(kernels, ReduceOp::kBitAnd, type);
    Add<E, BitXor>(kernels, ReduceOp::kBitXor, type);
  }
}

template <class E>
constexpr void AddConversions(ReduceKernels& kernels, DataType type) {
  kernels.narrow[static_cast<size_t>(type)] = &ScaleLoop<E, Plain<float, true>>;
  kernels.widen[static_cast<size_t>(type)] = &ScaleLoop<Plain<float, true>, E>;
}

constexpr ReduceKernels MakeReduceKernels() {
  ReduceKernels kernels;
  AddType<Plain<float, true>>(kernels, DataType::kF32);
  AddType<Plain<double, true>>(kernels, DataType::kF64);
  AddType<Float16>(kernels, DataType::kF16);
  AddType<BFloat16>(kernels, DataType::kBF16);
  AddType<Plain<int32_t, false>>(kernels, DataType::kI32);
  AddType<Plain<int64_t, false>>(kernels, DataType::kI64);
  AddType<Plain<uint8_t, false>>(kernels, DataType::kU8);
  AddConversions<Float16>(kernels, DataType::kF16);
  AddConversions<BFloat16>(kernels, DataType::kBF16);
  return kernels;
}

}  // namespace
}  // namespace tandem::collectives

#undef TANDEM_INLINE

#endif  // TANDEM_COLLECTIVES_REDUCE_VECTOR_H_
