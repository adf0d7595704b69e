// How long a step computes on a worker: the straggler models that policies are compared under.
#ifndef TANDEM_SIM_COMPUTE_TIME_H_
#define TANDEM_SIM_COMPUTE_TIME_H_

#include "absl/time/time.h"
#include "base/random.h"

namespace tandem::sim {

struct ComputeTime {
  enum class Kind {
    kConstant,
    kExponential,  // memoryless
    kLognormal,    // exp(sigma * normal), scaled to the mean
    kTransient,    // a share of the steps takes `factor` times as long
  };
  Kind kind = Kind::kConstant;
  absl::Duration mean = absl::Milliseconds(10);  // kTransient: of an ordinary step
  double sigma = 0.5;
  double transient_share = 0.05, transient_factor = 5;
  int slow_worker = -1;  // this rank takes slow_factor times as long, always
  double slow_factor = 4;

  absl::Duration Draw(int rank, Random* random) const;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_COMPUTE_TIME_H_
