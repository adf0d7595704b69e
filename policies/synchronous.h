// Policies that take each step together: updates of a step are held until all workers' have come,
// folded in rank order, and applied at once (BSP) or some steps later (fixed delay).
#ifndef TANDEM_POLICIES_SYNCHRONOUS_H_
#define TANDEM_POLICIES_SYNCHRONOUS_H_

#include <memory>

#include "policies/policy.h"

namespace tandem {

// Bulk synchronous parallel (Valiant 1990): every read of step k sees exactly the first k steps.
std::unique_ptr<UpdatePolicy> NewBsp();

// Fixed delay: w(c+1) = w(c) - eta * g(c - delay). The first `delay` steps apply nothing; delay 0 is
// BSP. The staleness is known and constant, which is what experiments on stale gradients need
// (Langford, Smola, Zinkevich 2009, "Slow learners are fast").
std::unique_ptr<UpdatePolicy> NewFixedDelay(int delay);

}  // namespace tandem

#endif  // TANDEM_POLICIES_SYNCHRONOUS_H_
