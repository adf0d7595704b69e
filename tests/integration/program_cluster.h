// A job of a program in one process: scheduler, servers and attached workers, each on threads of
// its own, and the training loop that a program would have, with a compiled model for its module.
#ifndef TANDEM_TESTS_INTEGRATION_PROGRAM_CLUSTER_H_
#define TANDEM_TESTS_INTEGRATION_PROGRAM_CLUSTER_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "transport/transport.h"
#include "worker/attached_worker.h"

namespace tandem {

// The same job with batches and model of a program: the tables keep their fields, the rest stays.
job::ResolvedJob ProgramPlan(const job::ResolvedJob& compiled,
                             const std::vector<std::string>& set = {});

class ProgramCluster {
 public:
  // Checkpoints go to `out`/model.
  ProgramCluster(const job::ResolvedJob& plan, const std::string& out);
  ~ProgramCluster();

  const std::string& scheduler() const { return address_; }
  // As whoever starts a worker; `rank` is wanted.
  std::unique_ptr<worker::AttachedWorker> Join(int rank);
  // Runs `program` for each rank on a thread; returns how the job ended, by the scheduler.
  absl::Status Run(const std::function<void(worker::AttachedWorker& worker)>& program);
  // Waits until scheduler and servers have ended.
  absl::Status Wait();

 private:
  const job::ResolvedJob plan_;
  std::atomic<bool> abort_{false};
  std::unique_ptr<transport::Transport> transport_;
  std::string address_;
  absl::Status ended_;
  std::thread scheduler_;
  std::vector<std::thread> servers_;
};

// Drives a worker to the end of its job: readers and model are those of `compiled`, the job that
// the plan was made of. With the optimizer PROGRAM it takes plain gradient steps of `rate`. It
// takes `pause` before it gives a batch or gradients. Returns how the job ended for this worker.
absl::Status TrainCompiled(const job::ResolvedJob& compiled, worker::AttachedWorker& worker,
                           float rate = 0, absl::Duration pause = absl::ZeroDuration());

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_PROGRAM_CLUSTER_H_
