// ReduceKernels: the loops behind reduce.h, compiled once for each level of x86 vector
// instructions. Internal to reduce.cc and its tests; depends only on the standard library.
#ifndef TANDEM_COLLECTIVES_REDUCE_KERNELS_H_
#define TANDEM_COLLECTIVES_REDUCE_KERNELS_H_

#include <cstddef>

#include "collectives/types.h"

namespace tandem::collectives {

// Function pointers by op and type; null if the op is not defined for the type. Contracts as in
// reduce.h.
struct ReduceKernels {
  using Reduce = void (*)(void* out, const void* a, const void* b, size_t count);
  using Fold = void (*)(void* out, const void* const* in, size_t inputs, size_t count);
  using Scale = void (*)(void* out, const void* in, size_t count, double factor);

  Reduce reduce[kReduceOpCount][kDataTypeCount] = {};
  Fold fold[kReduceOpCount][kDataTypeCount] = {};
  Scale scale[kDataTypeCount] = {};
  Scale narrow[kDataTypeCount] = {};  // f32 to a 16-bit type
  Scale widen[kDataTypeCount] = {};   // a 16-bit type to f32
};

// Uses only instructions that every processor of the architecture has.
extern const ReduceKernels kReduceBase;
#if defined(__x86_64__)
extern const ReduceKernels kReduceAvx2;    // AVX2 and F16C
extern const ReduceKernels kReduceAvx512;  // AVX-512 F, BW, DQ, VL and the needs of AVX2
#endif

bool HasAvx2();
bool HasAvx512();

// The fastest variant that this processor runs.
const ReduceKernels& BestReduceKernels();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_KERNELS_H_
