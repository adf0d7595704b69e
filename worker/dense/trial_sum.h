// A sum with a known result, to find out whether devices can read each other's memory. There are
// machines on which such reads succeed and return other data (PCIe with an IOMMU or ACS).
#ifndef TANDEM_WORKER_DENSE_TRIAL_SUM_H_
#define TANDEM_WORKER_DENSE_TRIAL_SUM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tandem::worker {

// The vector of a rank: positive integers that depend on rank and index. The sums of up to 4096
// ranks are exact in float32, in any order of additions.
std::vector<float> TrialVector(int rank, int64_t count);

// DATA_LOSS: an element is not the sum of the vectors of the ranks 0 to `ranks` - 1.
absl::Status CheckTrialSum(absl::Span<const float> sum, int ranks);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_TRIAL_SUM_H_
