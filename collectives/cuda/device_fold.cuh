// The work of one thread of the fold kernel, compiled for the device and for the host.
//
// Most elements move in 16-byte vectors, kUnroll vectors at a time, so that enough loads are in
// flight. The elements at both ends move one by one; if the pointers are aligned differently, all
// elements do. Multiplications and additions must not be fused (-fmad=false, -ffp-contract=off).
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_FOLD_CUH_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_FOLD_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "collectives/cuda/device_reduce.h"

namespace tandem::collectives {
namespace device {

#define TANDEM_BOTH __host__ __device__ __forceinline__

// A fold and how its elements are divided: elements [head, head + vectors * lanes) move as vectors.
struct Plan {
  DeviceFold fold;
  size_t head = 0;
  size_t vectors = 0;
};

// --- Types: how an element is stored in memory (Stored) and the type it is computed in (Lane).

template <class T, bool kIsFloating>
struct Plain {
  using Stored = T;
  using Lane = T;
  static constexpr bool kFloating = kIsFloating;
  static TANDEM_BOTH Lane Widen(Stored x) { return x; }
  static TANDEM_BOTH Stored Narrow(Lane x) { return x; }
};

struct Half {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr bool kFloating = true;
  static TANDEM_BOTH Lane Widen(Stored x) { return __half2float(__ushort_as_half(x)); }
  static TANDEM_BOTH Stored Narrow(Lane x) { return __half_as_ushort(__float2half_rn(x)); }
};

struct Brain {
  using Stored = uint16_t;
  using Lane = float;
  static constexpr bool kFloating = true;
  static TANDEM_BOTH Lane Widen(Stored x) { return __bfloat162float(__ushort_as_bfloat16(x)); }
  static TANDEM_BOTH Stored Narrow(Lane x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
};

template <class To, class From>
TANDEM_BOTH To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

template <size_t kBytes>
struct UnsignedOf {
  using type = uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = uint64_t;
};
template <>
struct UnsignedOf<1> {
  using type = uint8_t;
};

// --- Ops, with the meaning of types.h.

template <class E>
struct Sum {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) {
    using Unsigned = typename UnsignedOf<sizeof(Lane)>::type;
    if constexpr (E::kFloating) return a + b;
    return static_cast<Lane>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
  }
};

template <class E>
struct Product {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) {
    using Unsigned = typename UnsignedOf<sizeof(Lane)>::type;
    if constexpr (E::kFloating) return a * b;
    return static_cast<Lane>(
        static_cast<Unsigned>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b)));
  }
};

template <class E, bool kLess>
struct Extreme {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) {
    if (kLess ? a < b : b < a) return a;
    if (kLess ? b < a : a < b) return b;
    if constexpr (E::kFloating) {  // equal (maybe zeros of different sign), or one is NaN
      using Unsigned = typename UnsignedOf<sizeof(Lane)>::type;
      const Unsigned x = Bits<Unsigned>(a), y = Bits<Unsigned>(b);
      return Bits<Lane>(kLess || a != b ? x | y : x & y);
    }
    return a;
  }
};
template <class E>
struct Min : Extreme<E, true> {};
template <class E>
struct Max : Extreme<E, false> {};

template <class E>
struct LogicalOr {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) { return Lane(a != Lane(0) || b != Lane(0)); }
};

template <class E>
struct LogicalAnd {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) { return Lane(a != Lane(0) && b != Lane(0)); }
};

template <class E>
struct BitOr {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) { return static_cast<Lane>(a | b); }
};

template <class E>
struct BitAnd {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) { return static_cast<Lane>(a & b); }
};

template <class E>
struct BitXor {
  using Lane = typename E::Lane;
  static TANDEM_BOTH Lane Of(Lane a, Lane b) { return static_cast<Lane>(a ^ b); }
};

template <class E>
struct PreMulSum : Sum<E> {};
template <class E>
struct Average : Sum<E> {};

// --- Changes of an element on its way in and out.

template <class E, template <class> class Op>
struct Element {
  static constexpr bool kScaleIn = std::is_same_v<Op<E>, PreMulSum<E>>;
  static constexpr bool kScaleOut = std::is_same_v<Op<E>, Average<E>>;
  using Lane = typename E::Lane;
  using Stored = typename E::Stored;

  static TANDEM_BOTH Lane In(Stored x, Lane scalar) {
    if constexpr (kScaleIn) return E::Widen(E::Narrow(E::Widen(x) * scalar));
    return E::Widen(x);
  }
  static TANDEM_BOTH Stored Out(Lane x, Lane scalar) {
    if constexpr (kScaleOut) return E::Narrow(E::Widen(E::Narrow(x)) * scalar);
    return E::Narrow(x);
  }
};

// --- The loops of thread `first` of `stride` threads.

template <class E, template <class> class Op>
TANDEM_BOTH void FoldOne(const DeviceFold& fold, size_t i) {
  using Is = Element<E, Op>;
  using Stored = typename E::Stored;
  const auto scalar = static_cast<typename E::Lane>(fold.scalar);
  auto sum = Is::In(static_cast<const Stored*>(fold.in[0])[i], scalar);
  for (int k = 1; k < fold.inputs; ++k) {
    sum = Op<E>::Of(sum, Is::In(static_cast<const Stored*>(fold.in[k])[i], scalar));
  }
  const Stored result = Is::Out(sum, scalar);
  for (int o = 0; o < fold.outputs; ++o) static_cast<Stored*>(fold.out[o])[i] = result;
}

template <class Stored>
struct Pack {
  static constexpr int kLanes = static_cast<int>(16 / sizeof(Stored));
  Stored lane[kLanes];
};

template <class Stored>
TANDEM_BOTH Pack<Stored> LoadPack(const void* base, size_t v) {
  return Bits<Pack<Stored>>(static_cast<const uint4*>(base)[v]);
}

// Folds kUnroll packs at v, v + stride, ... of vectors that begin at element `head`.
template <class E, template <class> class Op, int kUnroll>
TANDEM_BOTH void FoldPacks(const DeviceFold& fold, size_t head, size_t v, size_t stride) {
  using Is = Element<E, Op>;
  using Stored = typename E::Stored;
  using Lane = typename E::Lane;
  constexpr int kLanes = Pack<Stored>::kLanes;
  const auto scalar = static_cast<Lane>(fold.scalar);
  Lane sum[kUnroll][kLanes];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const auto pack =
        LoadPack<Stored>(static_cast<const Stored*>(fold.in[0]) + head, v + u * stride);
#pragma unroll
    for (int j = 0; j < kLanes; ++j) sum[u][j] = Is::In(pack.lane[j], scalar);
  }
#pragma unroll 2
  for (int k = 1; k < fold.inputs; ++k) {
    const Stored* const in = static_cast<const Stored*>(fold.in[k]) + head;
    Pack<Stored> pack[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) pack[u] = LoadPack<Stored>(in, v + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        sum[u][j] = Op<E>::Of(sum[u][j], Is::In(pack[u].lane[j], scalar));
      }
    }
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    Pack<Stored> result;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) result.lane[j] = Is::Out(sum[u][j], scalar);
    const uint4 bits = Bits<uint4>(result);
    for (int o = 0; o < fold.outputs; ++o) {
      reinterpret_cast<uint4*>(static_cast<Stored*>(fold.out[o]) + head)[v + u * stride] = bits;
    }
  }
}

template <class E, template <class> class Op>
TANDEM_BOTH void FoldThread(const Plan& plan, size_t first, size_t stride) {
  constexpr size_t kLanes = Pack<typename E::Stored>::kLanes;
  constexpr int kUnroll = kLanes > 8 ? 2 : 4;  // more would need too many registers for bytes
  size_t v = first;
  for (; v + (kUnroll - 1) * stride < plan.vectors; v += kUnroll * stride) {
    FoldPacks<E, Op, kUnroll>(plan.fold, plan.head, v, stride);
  }
  for (; v < plan.vectors; v += stride) FoldPacks<E, Op, 1>(plan.fold, plan.head, v, stride);

  const size_t after = plan.head + plan.vectors * kLanes;
  const size_t singles = plan.head + (plan.fold.count - after);
  for (size_t i = first; i < singles; i += stride) {
    FoldOne<E, Op>(plan.fold, i < plan.head ? i : after + (i - plan.head));
  }
}

#undef TANDEM_BOTH

}  // namespace device
}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_FOLD_CUH_
