// A worker process: the comm thread runs the trainer's core over a transport, a compute thread runs
// the model, a reader thread prepares batches. What the two do is a TaskRunner's. Data and model
// are opened on a thread of their own: that may take long, and the comm thread goes on listening.
#ifndef TANDEM_WORKER_WORKER_SHELL_H_
#define TANDEM_WORKER_WORKER_SHELL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "node/job_member.h"
#include "proto/wire.pb.h"
#include "transport/path_log.h"
#include "worker/task_runner.h"

namespace tandem::worker {

struct WorkerOptions {
  job::JobPlan plan;
  node::JobMember::Options member;            // but what the shell knows: role, endpoints
  std::shared_ptr<transport::PathLog> paths;  // what the transports have chosen; may be null
  // Once the rank is known, on the opening thread. `init_from`: the save that the dense part is
  // taken from; empty: none.
  std::function<absl::StatusOr<std::unique_ptr<TaskRunner>>(const job::JobPlan& plan, int rank,
                                                            const std::string& init_from)>
      make_runner;
  // The rest may be empty. Data and model are open, and replicas of a program have met. On the
  // opening thread.
  std::function<void()> on_open;
  // Asked often by the comm thread; an error is why this worker ends the job.
  std::function<absl::Status()> interrupted;
  // What whoever drives the worker has to say to the scheduler, and what the scheduler says to it, on
  // the comm thread, once there is a view.
  std::function<void(absl::Time now, std::vector<Control>* out)> say;
  std::function<void(const Control& control)> hear;
  // The job is over for this worker, so or so: what the runner waits for will not come any more. On
  // the comm thread, before other threads are waited for.
  std::function<void(const absl::Status& how)> on_end;
  // Where tables are on workers, as of a server: folders for staleness records and orders, and of a run
  // whose order this one is to take (server/server_shell.h); empty = none.
  std::string record_dir, replay;
  // A trace of the first `trace_steps` steps, and of evaluations and saves, goes here
  // (collectives/trace.h); empty = none.
  std::string trace_path;
  int64_t trace_steps = 0;
  // What the collectives did goes here if the job fails, or when `dump_signals` changes
  // (collectives/dump.h); empty = nowhere.
  std::string dump_folder;
  const std::atomic<int>* dump_signals = nullptr;  // may be null
};

// Trains until the job ends. OK: an orderly end. Otherwise who failed, and why.
absl::Status RunWorker(const WorkerOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_WORKER_SHELL_H_
