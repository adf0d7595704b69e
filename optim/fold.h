// The fold: gradient sums of several ranks become one mean gradient. Servers use it for the updates
// of a step, and the plain loop of the tests. The direct all-reduce folds long vectors of any type
// with kernels of its own (collectives/reduce.h); for the short rows of a server this loop is 1.4
// to ten times as fast (16 floats: 2.5 ns against 5). collective_reduce_test holds the two to the
// same bits, so that synchronous parameter server, allreduce and a plain loop give the same ones.
//
// Rule: contributions are added in rank order, starting from a copy of the first one (not from
// zero), skipping ranks without one; the sum is multiplied once by 1 / (sum of n).
// Built with -ffp-contract=off.
#ifndef TANDEM_OPTIM_FOLD_H_
#define TANDEM_OPTIM_FOLD_H_

#include <cstddef>

namespace tandem::optim {

// sum[i] += x[i] for i in [0, n). The pointers do not overlap.
void FoldAdd(float* sum, const float* x, size_t n);

// 1 / sum_of_n as every caller computes it; 0 if sum_of_n is 0.
float FoldFactor(double sum_of_n);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_FOLD_H_
