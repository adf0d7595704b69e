// The arithmetic of collectives on host memory: every op on every type (types.h).
//
// Pointers may have any alignment, even less than the element's, because they may point into bytes
// that arrived from the network. `out` may be equal to any input; other overlap is not allowed. The
// loops are vectorised for the processor they run on (reduce_kernels.h). The result does not depend
// on the variant that runs, on alignment, or on how a vector is cut into calls. Every op is
// commutative to the bit, except for the payload of a NaN, which is unspecified.
//
// 16-bit types: both sides are widened to float, one operation is done in float, and the result is
// rounded once to nearest even. NaN stays NaN; f16 overflows to infinity beyond 65519.
//
// Thread safety: pure functions. All of them require Defined(op, type), else CHECK fails.
#ifndef TANDEM_COLLECTIVES_REDUCE_H_
#define TANDEM_COLLECTIVES_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "collectives/types.h"

namespace tandem::collectives {

// out[i] = a[i] (op) b[i] for i in [0, count). Average and PreMulSum are plain sums here: the
// caller multiplies separately, with Scale after the last sum (average) or ScaleCopy before the
// first (PreMulSum).
void Reduce(ReduceOp op, DataType type, void* out, const void* a, const void* b, size_t count);

// out[i] = ((c0[i] op c1[i]) op c2[i]) ... over the contributions in their order. 16-bit types are
// added in float and rounded once at the end. For the other types the bits are those of repeated
// Reduce. A single contribution is copied. Requires at least one.
void FoldInOrder(ReduceOp op, DataType type, void* out, absl::Span<const void* const> contributions,
                 size_t count);

// out[i] = in[i] * factor. The factor is first rounded to the type; for 16-bit types it is rounded
// to float, and the product is rounded once. Requires IsFloating(type).
void ScaleCopy(DataType type, void* out, const void* in, size_t count, double factor);
// As ScaleCopy, in place.
void Scale(DataType type, void* data, size_t count, double factor);

// Narrow and Widen convert between f32 and the 16-bit types in which gradients travel: `type` is
// kF16 or kBF16. Narrow: out[i] = in[i] * factor, rounded to nearest even. NaN stays NaN; f16
// overflows to infinity from 65520 on and keeps subnormals. `out` has room for in.size() elements
// of 2 bytes.
void Narrow(DataType type, absl::Span<const float> in, float factor, void* out);
// Widen: out[i] = in[i] * factor.
void Widen(DataType type, const void* in, float factor, absl::Span<float> out);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_H_
