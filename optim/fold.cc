#include "optim/fold.h"

namespace tandem::optim {

void FoldAdd(float* sum, const float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) sum[i] += x[i];
}

float FoldFactor(double sum_of_n) {
  return sum_of_n == 0 ? 0.0f : static_cast<float>(1.0 / sum_of_n);
}

}  // namespace tandem::optim
