// What stragglers do to each policy, by a model of its own that knows nothing of this system: eight
// workers, a step is a draw, and nothing else takes time. Gradients that count, a second, relative
// to BSP.
#ifndef TANDEM_TESTS_SIM_STRAGGLER_ROWS_H_
#define TANDEM_TESTS_SIM_STRAGGLER_ROWS_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_job.h"

namespace tandem {

inline constexpr int kStragglerWorkers = 8, kSlowWorker = 2;

struct StragglerRow {
  const char* name;
  std::string slow_workers;
  double backup1, backup2;  // late work abandoned
  double ssp1, ssp4, ssp16, asp, gba;
};

inline std::vector<StragglerRow> StragglerRows() {
  const std::string lognormal = "slow_workers { distribution: LOGNORMAL mean_seconds: 0.01 sigma: ";
  return {
      {"exponential", kExponential, 1.39, 1.68, 1.52, 2.12, 2.50, 2.73, 2.73},
      {"lognormal .5", kLognormal, 1.18, 1.23, 1.44, 1.72, 1.85, 1.88, 1.88},
      {"transient", lognormal + "0.1 slow_share: 0.05 slow_factor: 5 } ", 1.66, 1.75, 1.31, 1.75,
       1.99, 2.08, 2.08},
      {"one 4 x slow",
       absl::StrCat(lognormal, "0.2 } slow_workers { worker: ", kSlowWorker,
                    " distribution: LOGNORMAL mean_seconds: 0.04 sigma: 0.2 } "),
       2.70, 2.62, .99, 1.00, 1.00, 3.62, 3.62},
      {"no variance", "", .88, .75, 1.00, 1.00, 1.00, 1.00, 1.00},
  };
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_STRAGGLER_ROWS_H_
