// The dense parameters of a save.
//
// Thread safety: a pure function but for the files.
#ifndef TANDEM_WORKER_LOAD_DENSE_H_
#define TANDEM_WORKER_LOAD_DENSE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "server/manifest.h"
#include "worker/dense_parameters.h"

namespace tandem::worker {

// Values, and the optimizer's slots if it is the same. Errors name the file: no save, another
// model.
absl::Status LoadDense(const job::JobPlan& plan, const std::string& save,
                       const std::vector<server::SavedParameter>& parameters,
                       DenseParameters* dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_LOAD_DENSE_H_
