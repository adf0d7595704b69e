// A worker process. This folder contains the training loop: steps, epochs, evaluations,
// checkpoints, and the synchronisation of dense parameters between workers.
//
// The comm thread runs the trainer's core (trainer_core.h) over a transport. A compute thread runs
// the model, and a reader thread prepares batches; both run tasks of a TaskRunner. Another thread
// opens data and model, because that may take long while the comm thread must go on listening.
#ifndef TANDEM_WORKER_WORKER_SHELL_H_
#define TANDEM_WORKER_WORKER_SHELL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/rendezvous.h"
#include "job/job.h"
#include "node/node_session.h"
#include "proto/wire.pb.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "transport/path_log.h"
#include "worker/task_runner.h"

namespace tandem::worker {

struct WorkerOptions {
  job::ResolvedJob plan;
  // The shell fills in role and endpoints.
  node::NodeSession::Options member;
  std::shared_ptr<transport::PathLog> paths;  // choices of the transports; may be null
  collectives::GroupSecurity security;        // of the links to other workers
  // Makes the task runner, once the rank is known, on the opening thread. `gpu`: the number of the
  // GPU of this worker, if the job computes on GPUs. `saved`: the checkpoint that the dense part is
  // taken from; null: none.
  std::function<absl::StatusOr<std::unique_ptr<TaskRunner>>(
      const job::ResolvedJob& plan, int rank, int gpu,
      std::shared_ptr<const server::CheckpointReader> saved)>
      make_runner;
  // The callbacks below may be empty. Called on the opening thread, when data and model are open
  // and the workers have exchanged the values of a program's module.
  std::function<void()> on_open;
  // The comm thread calls this often; an error is the reason why this worker ends the job.
  std::function<absl::Status()> interrupted;
  // `say` returns messages of the program that drives the worker to the scheduler; `hear` receives
  // the scheduler's messages. On the comm thread; `say` only once there is a view.
  std::function<void(absl::Time now, std::vector<Control>* out)> say;
  std::function<void(const Control& control)> hear;
  // The job is over for this worker, well or not: the runner must stop waiting. Called on the comm
  // thread, before the worker joins its other threads.
  std::function<void(const absl::Status& how)> on_end;
  // For tables on workers, as in server/server_shell.h: the folder for staleness records and
  // orders, and the folder of a run whose order this run repeats; empty = none.
  std::string record_dir, replay;
  // The file for a trace of the first `trace_steps` steps, and of evaluations and checkpoints
  // (collectives/trace.h); empty = none.
  std::string trace_path;
  int64_t trace_steps = 0;
  // The folder for a dump of the collectives, written if the job fails or when `dump_signals`
  // changes (collectives/dump.h); empty = none.
  std::string dump_folder;
  const std::atomic<int>* dump_signals = nullptr;  // may be null
};

// Trains until the job ends. OK: an orderly end. Otherwise the error names the failed node and the
// reason.
absl::Status RunWorker(const WorkerOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_WORKER_SHELL_H_
