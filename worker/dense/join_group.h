// Makes the collective group of a job's workers: the workers find each other at the rendezvous that
// a view names, connect links, and synchronise the dense parameters over them.
#ifndef TANDEM_WORKER_DENSE_JOIN_GROUP_H_
#define TANDEM_WORKER_DENSE_JOIN_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/rendezvous/rendezvous.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "server/checkpoint/manifest.h"
#include "worker/dense/deal_devices.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_steps.h"
#include "worker/dense/group_runner.h"
#include "worker/dense/initial_values.h"
#include "worker/dense/tune_group.h"

namespace tandem::worker {

// Where the workers of a job find each other, and what keeps strangers out.
struct Rendezvous {
  std::string coordinator;  // host:port
  collectives::GroupSecurity security;
};

struct WorkerGroup {
  std::unique_ptr<GroupRunner> runner;
  std::unique_ptr<DenseSteps> steps;  // uses the runner, so it ends first
  DenseTuning tuning;
  std::vector<Path> paths;  // the links to lower ranks, for the scheduler
};

// Blocks until all workers of the job are there. `rendezvous`: unused if the job has one worker.
// `dump_folder`: the folder for a dump of the group, written if the
// group fails or on request (GroupRunner::RequestDump); empty: none. `watch` ends all waits, also
// those of this function, and outlives the group. `device_gradient`: set if the job's device is
// CUDA.
//
// If each worker has its own module, the module is compared with that of rank 0 and takes its
// initial values from there (initial_values.h). Errors name the worker that is missing or whose
// links have failed (errors.h). The error is only what this worker has seen: the scheduler decides
// which worker is lost.
absl::StatusOr<WorkerGroup> JoinWorkers(const job::ResolvedJob& plan, int rank,
                                        const Rendezvous& rendezvous,
                                        const std::string& dump_folder, const OwnModule& module,
                                        DenseParameters& dense,
                                        GroupRunner::DeviceGradient device_gradient,
                                        AbortableWatch* watch);

// Returns the GPUs that each worker can use, by rank. All workers must call this function, and each
// call blocks until the last worker calls. `own`: the GPUs of this worker.
absl::StatusOr<std::vector<VisibleDevices>> ShareDevices(const job::ResolvedJob& plan, int rank,
                                                         const Rendezvous& rendezvous,
                                                         VisibleDevices own, AbortableWatch* watch);

// Makes the same comparison and gives the same initial values in jobs of two or more workers whose
// dense parameters are on servers. The group lives as long as the job, because other workers may
// still read from it.
absl::StatusOr<std::unique_ptr<collectives::Group>> ShareModule(
    const job::ResolvedJob& plan, int rank, const Rendezvous& rendezvous, const OwnModule& module,
    absl::Span<float> values, AbortableWatch* watch);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_JOIN_GROUP_H_
