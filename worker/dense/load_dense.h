// Loads the dense parameters of a checkpoint.
//
// Thread safety: a pure function, except that it reads files.
#ifndef TANDEM_WORKER_DENSE_LOAD_DENSE_H_
#define TANDEM_WORKER_DENSE_LOAD_DENSE_H_

#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "worker/dense/dense_parameters.h"

namespace tandem::worker {

// Loads the values, and the optimizer state if the optimizer is the same. Errors name the file, for
// example if the model is a different one.
absl::Status LoadDense(const job::ResolvedJob& plan, const server::CheckpointReader& saved,
                       const std::vector<server::CheckpointParameter>& parameters,
                       DenseParameters* dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_LOAD_DENSE_H_
