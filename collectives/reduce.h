// The arithmetic of collectives on host memory: every op on every type (types.h).
//
// Pointers may have any alignment, also less than the element's (they may point into what arrived
// from the network), and `out` may be equal to any input; other overlap is not allowed. Vectorised
// for the processor at hand (reduce_kernels.h); the result does not depend on which variant runs,
// on alignment, or on how a vector is cut into calls. Every op is commutative to the bit but for
// the payload of a NaN, which is unspecified.
//
// 16-bit types: both sides are widened to float, one operation is done there, and the result is
// rounded once to nearest even. NaN stays NaN; f16 overflows to infinity beyond 65519.
//
// Thread safety: pure functions. Requires Defined(op, type) throughout, else CHECK fails.
#ifndef TANDEM_COLLECTIVES_REDUCE_H_
#define TANDEM_COLLECTIVES_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "collectives/types.h"

namespace tandem::collectives {

// out[i] = a[i] (op) b[i] for i in [0, count). Average and premulsum are plain sums here: their
// multiply is Scale after the last sum, and ScaleCopy before the first.
void Reduce(ReduceOp op, DataType type, void* out, const void* a, const void* b, size_t count);

// out[i] = ((c0[i] op c1[i]) op c2[i]) ... over the contributions in their order. For 16-bit types
// all of it happens in float and is rounded once at the end; for the others the bits are those of
// repeated Reduce. A single contribution is copied. Requires at least one.
void FoldInOrder(ReduceOp op, DataType type, void* out, absl::Span<const void* const> contributions,
                 size_t count);

// out[i] = in[i] * factor, where factor is first rounded to the type (to float for 16-bit types,
// which round the product once). Requires IsFloating(type).
void ScaleCopy(DataType type, void* out, const void* in, size_t count, double factor);
// The same in place.
void Scale(DataType type, void* data, size_t count, double factor);

// Between f32 and the 16-bit types that gradients travel in: `type` is kF16 or kBF16.
// Narrow: out[i] = in[i] * factor, rounded to nearest even. NaN stays NaN; f16 overflows to
// infinity from 65520 on and keeps subnormals. `out` has room for in.size() elements of 2 bytes.
void Narrow(DataType type, absl::Span<const float> in, float factor, void* out);
// Widen: out[i] = in[i] * factor.
void Widen(DataType type, const void* in, float factor, absl::Span<float> out);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_H_
