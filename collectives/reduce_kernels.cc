#include "collectives/reduce_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem::collectives {

#if defined(__x86_64__)
bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // clang 14 does not know f16c by name, so __builtin_cpu_supports cannot be used for it.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const ReduceKernels& BestReduceKernels() {
  static const ReduceKernels& best = HasAvx512() ? kReduceAvx512
                                     : HasAvx2() ? kReduceAvx2
                                                 : kReduceBase;
  return best;
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
const ReduceKernels& BestReduceKernels() { return kReduceBase; }
#endif

}  // namespace tandem::collectives
