#include "sim/compute_time.h"

#include <cmath>

namespace tandem::sim {

absl::Duration ComputeTime::Draw(int rank, Random* random) const {
  double factor = rank == slow_worker ? slow_factor : 1.0;
  switch (kind) {
    case Kind::kConstant:
      break;
    case Kind::kExponential:
      factor *= random->Exponential();
      break;
    case Kind::kLognormal:
      factor *= std::exp(sigma * random->Normal() - sigma * sigma / 2);
      break;
    case Kind::kTransient:
      if (random->Bernoulli(transient_share)) factor *= transient_factor;
      break;
  }
  return mean * factor;
}

}  // namespace tandem::sim
