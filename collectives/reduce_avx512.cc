// Compiled for AVX-512: see CMakeLists.txt.
#include "collectives/reduce_vector.h"

namespace tandem::collectives {

extern constexpr ReduceKernels kReduceAvx512 = MakeReduceKernels();

}  // namespace tandem::collectives
