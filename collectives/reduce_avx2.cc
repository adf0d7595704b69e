// Compiled for AVX2 and F16C: see CMakeLists.txt.
#include "collectives/reduce_vector.h"

namespace tandem::collectives {

extern constexpr ReduceKernels kReduceAvx2 = MakeReduceKernels();

}  // namespace tandem::collectives
