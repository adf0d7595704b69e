// Between f32 and the 16-bit types that gradients travel in.
//
// Thread safety: pure functions. `type` is kF16 or kBF16, else CHECK fails.
#ifndef TANDEM_COLLECTIVES_CONVERT_H_
#define TANDEM_COLLECTIVES_CONVERT_H_

#include "absl/types/span.h"
#include "collectives/types.h"

namespace tandem {

// out[i] = in[i] * factor, rounded to nearest even. NaN stays NaN; f16 overflows to infinity from
// 65520 on and keeps subnormals. `out` has room for in.size() elements of 2 bytes.
void Narrow(DataType type, absl::Span<const float> in, float factor, void* out);

// out[i] = in[i] * factor.
void Widen(DataType type, const void* in, float factor, absl::Span<float> out);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_CONVERT_H_
