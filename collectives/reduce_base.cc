// Compiled for the instructions that every processor of the architecture has: see CMakeLists.txt.
#include "collectives/reduce_vector.h"

namespace tandem::collectives {

extern constexpr ReduceKernels kReduceBase = MakeReduceKernels();

}  // namespace tandem::collectives
