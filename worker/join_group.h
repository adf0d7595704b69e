// Makes the collective group of a job's workers: they meet at the coordinator that a view names,
// are joined by links, and synchronise the dense parameters.
#ifndef TANDEM_WORKER_JOIN_GROUP_H_
#define TANDEM_WORKER_JOIN_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/meeting/coordinator_client.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "worker/dense_parameters.h"
#include "worker/dense_synchroniser.h"
#include "worker/tune_group.h"

namespace tandem {

// What a worker holds for its collectives, to be destroyed in this order from below.
struct WorkerGroup {
  std::unique_ptr<CoordinatorClient> client;  // null in a job of one worker
  // Between the first workers of the hosts, for gradients on GPUs; null elsewhere.
  std::unique_ptr<CoordinatorClient> leaders_client;
  std::unique_ptr<DenseSynchroniser> synchroniser;
  DenseTuning tuning;
  std::vector<Path> paths;  // the links to lower ranks, for the scheduler
};

// Blocks until all workers of the job are there. `coordinator`: host:port, unused if the job has
// one worker. `dump_folder`: where what the group did is written if it fails, or on request
// (DenseSynchroniser::RequestDump); empty: nowhere. Errors name the worker that is missing or at
// fault.
absl::StatusOr<WorkerGroup> JoinWorkers(const JobPlan& plan, int rank,
                                        const std::string& coordinator,
                                        const std::string& dump_folder, DenseParameters& dense);

}  // namespace tandem

#endif  // TANDEM_WORKER_JOIN_GROUP_H_
