// What the replicas of a module begin with that each worker has by itself (job/own_module.h): the same
// parameters on every worker, with the first values of rank 0. A script makes its module itself, at
// random or not; a module from a file is of the same file everywhere.
//
// Thread safety: a pure function but for the group, which is the caller's.
#ifndef TANDEM_WORKER_FIRST_VALUES_H_
#define TANDEM_WORKER_FIRST_VALUES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "server/manifest.h"

namespace tandem::worker {

struct OwnModule {
  std::vector<server::SavedParameter> parameters;
  std::string contents;  // of its file, as a hash; empty: of none
};

// All ranks call it. INVALID_ARGUMENT on a rank whose module is not that of rank 0, with the first
// difference; the others learn of it when the job ends.
absl::Status ShareFirstValues(collectives::Group& group, const OwnModule& module,
                              absl::Span<float> values);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_FIRST_VALUES_H_
