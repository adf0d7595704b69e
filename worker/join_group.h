// Makes the collective group of a job's workers: they meet at the coordinator that a view names,
// are joined by links, and synchronise the dense parameters.
#ifndef TANDEM_WORKER_JOIN_GROUP_H_
#define TANDEM_WORKER_JOIN_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "server/manifest.h"
#include "worker/dense_parameters.h"
#include "worker/dense_reducer.h"
#include "worker/first_values.h"
#include "worker/tune_group.h"

namespace tandem::worker {

struct WorkerGroup {
  std::unique_ptr<DenseReducer> reducer;
  DenseTuning tuning;
  std::vector<Path> paths;  // the links to lower ranks, for the scheduler
};

// Blocks until all workers of the job are there. `coordinator`: host:port, unused if the job has
// one worker. `dump_folder`: where what the group did is written if it fails, or on request
// (DenseReducer::RequestDump); empty: nowhere. `watch` ends all waits, these too, and outlives the
// group. A module that each worker has by itself is compared with that of rank 0, and takes its first
// values from there (first_values.h). Errors name the worker that is missing or whose links
// have failed (errors.h), which is what this worker has seen and no judgement: the scheduler says
// who is lost.
absl::StatusOr<WorkerGroup> JoinWorkers(const job::JobPlan& plan, int rank,
                                        const std::string& coordinator,
                                        const std::string& dump_folder, const OwnModule& module,
                                        DenseParameters& dense, AbortableWatch* watch);

// The same comparison and first values where dense parameters are on servers, on two
// workers or more. Others may still read from the group: it lives as long as the job.
absl::StatusOr<std::unique_ptr<collectives::Group>> ShareModule(const job::JobPlan& plan, int rank,
                                                                const std::string& coordinator,
                                                                const OwnModule& module,
                                                                absl::Span<float> values,
                                                                AbortableWatch* watch);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOIN_GROUP_H_
