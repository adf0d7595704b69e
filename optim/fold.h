// The fold: gradient sums of several ranks become one mean gradient. Servers use it for the updates
// of a step, and so does the plain loop of the tests. The direct allreduce folds long vectors of
// any type with its own kernels (collectives/reduce.h). For the short rows of a server this loop is
// 1.4 to ten times as fast as those kernels (16 floats: 2.5 ns against 5). collective_reduce_test
// checks that both give the same bits, so that a synchronous parameter server, an allreduce and a
// plain loop agree bit by bit.
//
// The rule: contributions are added in rank order, starting from a copy of the first one (not from
// zero) and skipping ranks without a contribution. The sum is multiplied once by 1 / (sum of n).
// The file is built with -ffp-contract=off.
#ifndef TANDEM_OPTIM_FOLD_H_
#define TANDEM_OPTIM_FOLD_H_

#include <cstddef>

namespace tandem::optim {

// sum[i] += x[i] for i in [0, n). The pointers do not overlap.
void FoldAdd(float* sum, const float* x, size_t n);

// 1 / sum_of_n, rounded alike for every caller; 0 if sum_of_n is 0.
float FoldFactor(double sum_of_n);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_FOLD_H_
