// The workers of a simulated world. Each has the core of a worker process
// (worker/trainer_core.h), a runner that does its tasks in virtual time, and, if dense parameters
// are replicated, collectives.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_WORKERS_H_
#define TANDEM_TOOLS_SIM_SIM_WORKERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/step_time.h"
#include "tools/sim/data_frames.h"
#include "tools/sim/sim_checkpoints.h"
#include "tools/sim/sim_collectives.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_quorum.h"
#include "tools/sim/sim_scheduler.h"
#include "tools/sim/sim_servers.h"
#include "worker/task_runner.h"
#include "worker/trainer_core.h"

namespace tandem::sim {

class SimWorkers {
 public:
  // References must outlive this. `servers` knows the ranges that a checkpoint must contain.
  SimWorkers(SimContext& context, SimScheduler& scheduler, DataFrames& frames,
             const SimServers& servers, SimCheckpoints& checkpoints)
      : context_(context),
        scheduler_(scheduler),
        frames_(frames),
        servers_(servers),
        checkpoints_(checkpoints) {}
  // `make_runner` makes the runners that compute.
  absl::Status Init(const worker::MakeTaskRunner& make_runner);
  void StartClocks();

  void OnControl(int rank, const Control& control);
  void OnFrame(int rank, const ParsedFrame& frame);
  void OnDeath(EndpointId process);
  // A new process takes the place of this worker. It begins with the view that names it.
  void Replace(int rank) { worker(rank).replaced = true; }

  // A line for each worker with what it does or waits for.
  std::string WhoWaits() const;

  const worker::TrainerCore& core(int rank) const { return *worker(rank).core; }
  worker::DenseParameters& dense(int rank) const { return worker(rank).runner->dense(); }
  uint64_t updates_sent(uint32_t table) const;  // by the processes that live
  uint64_t rows_cached() const;                 // rows that all workers took from their caches
  uint64_t frames_resent() const;
  int evaluations() const { return evaluations_; }
  int resumes() const { return resumes_; }              // of options.resume_dense
  int64_t first_epoch() const { return first_epoch_; }  // of this attempt

 private:
  struct Worker {
    std::unique_ptr<worker::TaskRunner> runner;
    std::unique_ptr<worker::TrainerCore> core;
    job::StepTimes step_times;
    int64_t reported_step = -1;  // in its last report to the scheduler
    bool stopped = false;
    bool replaced = false;  // the process has died, and the new one has no view yet
    std::unique_ptr<SimCollectives> collectives;  // for replicated dense parameters; else null
    SimQuorum* quorum = nullptr;                  // with a quorum; owned by `collectives`
    // Tasks for the collectives, one after the other as on a worker's single thread for them. The
    // first task has begun.
    std::deque<worker::TrainerTask> with_others;
  };
  // The state of replicas in a checkpoint that is being written.
  struct Gathered {
    int workers = 0;                    // workers that have done their part
    const std::string* file = nullptr;  // dense parameters, written by rank 0; null: not yet
  };

  Worker& worker(int rank) const { return *workers_[static_cast<size_t>(rank)]; }
  // `start`: where it begins in the place of a dead process; null: it replaces none.
  absl::StatusOr<std::unique_ptr<Worker>> NewWorker(int rank, const WorkerStart* start);
  absl::Status Begin(int rank, const WorkerStart& start, worker::TaskRunner* runner,
                     worker::TrainerCore::Options* options);
  absl::Status LoadCheckpoint(int rank, worker::TaskRunner* runner,
                              worker::TrainerCore::Options* options, std::string* own_state);
  absl::StatusOr<std::unique_ptr<SimCollectives>> NewCollectives(int rank, Worker* worker);
  void StartClocksOf(int rank);
  void OnView(int rank, const View& view);
  void AfterTrainer(int rank);
  void Send(int rank, const Outgoing& out);
  void Post(int from, int to, const SimQuorum::Letter& letter);
  void ToScheduler(int rank, const Control& control);
  void StartTask(int rank, worker::TrainerTask task);
  void StartCollective(int rank, worker::TrainerTask task);
  void BeginCollective(Worker* worker);
  void ProgressCollectives(int rank);
  Activity WaitingForOthers(int rank) const;
  void FinishTask(int rank, const worker::TrainerTask& task);
  absl::Status RunTask(int rank, const worker::TrainerTask& task);
  absl::Status CopyWorker(int rank, const worker::CopyWorkerTask& task);
  absl::Status ResumeDense(worker::CheckpointId checkpoint);
  absl::Status MergeShares(int rank, const worker::MergeSharesTask& task);

  SimContext& context_;
  SimScheduler& scheduler_;
  DataFrames& frames_;
  const SimServers& servers_;
  SimCheckpoints& checkpoints_;
  worker::MakeTaskRunner make_runner_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> dead_;  // those that were replaced
  worker::TrainerEffects effects_;
  std::vector<Outgoing> segments_;  // frames of collectives to send; scratch
  int evaluations_ = 0, resumes_ = 0;
  int64_t first_epoch_ = 0;
  std::map<worker::CheckpointId, Gathered> gathered_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_WORKERS_H_
