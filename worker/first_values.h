// What the replicas of a program's module begin with: the same parameters on every worker, with the
// first values of rank 0. Each script makes its module itself, at random or not.
//
// Thread safety: a pure function but for the group, which is the caller's.
#ifndef TANDEM_WORKER_FIRST_VALUES_H_
#define TANDEM_WORKER_FIRST_VALUES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "server/manifest.h"

namespace tandem::worker {

// All ranks call it. INVALID_ARGUMENT on a rank whose parameters are not those of rank 0, with the
// first difference; the others learn of it when the job ends.
absl::Status ShareFirstValues(collectives::Group& group,
                              const std::vector<server::SavedParameter>& parameters,
                              absl::Span<float> values);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_FIRST_VALUES_H_
