// Gives every worker's copy of a module the same initial values (job/user_module.h: modules that
// each worker makes or loads itself). All workers must have the same parameters; their values come
// from rank 0. A script makes its module itself, at random or not. A module from a file must come
// from the same file on every worker.
//
// Thread safety: a pure function, except that it uses the caller's group.
#ifndef TANDEM_WORKER_DENSE_INITIAL_VALUES_H_
#define TANDEM_WORKER_DENSE_INITIAL_VALUES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "server/checkpoint/manifest.h"

namespace tandem::worker {

struct OwnModule {
  std::vector<server::CheckpointParameter> parameters;
  std::string contents;  // a hash of the module's file; empty: no file
};

// All ranks call this function. INVALID_ARGUMENT on a rank whose module differs from that of rank
// 0, with the first difference; the other ranks learn of the error when the job ends.
absl::Status ShareInitialValues(collectives::Group& group, const OwnModule& module,
                                absl::Span<float> values);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_INITIAL_VALUES_H_
