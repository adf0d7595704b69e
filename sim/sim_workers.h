// The workers of a simulated world: for each the core that runs in a worker process
// (worker/trainer_core.h), a runner that does its tasks in virtual time, and, where dense parameters
// are replicas, collectives among them.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_SIM_WORKERS_H_
#define TANDEM_SIM_SIM_WORKERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/service_time.h"
#include "sim/data_frames.h"
#include "sim/save_check.h"
#include "sim/sim_collectives.h"
#include "sim/sim_context.h"
#include "sim/sim_quorum.h"
#include "sim/sim_scheduler.h"
#include "sim/sim_servers.h"
#include "worker/task_runner.h"
#include "worker/trainer_core.h"

namespace tandem::sim {

class SimWorkers {
 public:
  // References outlive this. `servers` says what a save must have.
  SimWorkers(SimContext& context, SimScheduler& scheduler, DataFrames& frames,
             const SimServers& servers, SaveCheck& saves)
      : context_(context),
        scheduler_(scheduler),
        frames_(frames),
        servers_(servers),
        saves_(saves) {}
  // `make_runner` makes what computes.
  absl::Status Init(const worker::MakeTaskRunner& make_runner);
  void StartClocks();

  void OnControl(int rank, const Control& control);
  void OnFrame(int rank, const ParsedFrame& frame);

  // One line a worker: what it does or waits for.
  std::string WhoWaits() const;

  const worker::TrainerCore& core(int rank) const { return *worker(rank).core; }
  worker::DenseParameters& dense(int rank) const { return worker(rank).runner->dense(); }
  uint64_t updates_sent(uint32_t table) const;
  uint64_t rows_cached() const;  // read from what workers keep, all of them
  uint64_t frames_resent() const;
  int evaluations() const { return evaluations_; }
  int resumes() const { return resumes_; }  // of options.resume_dense

 private:
  struct Worker {
    std::unique_ptr<worker::TaskRunner> runner;
    std::unique_ptr<worker::TrainerCore> core;
    job::ServiceTimes service_times;
    int64_t reported_step = -1;  // in its last report to the scheduler
    bool stopped = false;
    std::unique_ptr<SimCollectives> collectives;  // replicas of dense parameters; else null
    SimQuorum* quorum = nullptr;                  // ... whose sums do not wait; theirs
    // What the collectives are for, one after the other as on a worker's one thread for them; the first
    // has begun.
    std::deque<worker::TrainerTask> with_others;
  };
  // Of replicas, for a save under way.
  struct Gathered {
    int workers = 0;                    // that are through with their part
    const std::string* file = nullptr;  // of dense parameters, which rank 0 writes; null: not yet
  };

  Worker& worker(int rank) const { return *workers_[static_cast<size_t>(rank)]; }
  absl::StatusOr<std::unique_ptr<Worker>> NewWorker(int rank,
                                                    const worker::MakeTaskRunner& make_runner);
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
  absl::Status WriteWorker(int rank, const worker::WriteWorkerTask& task);
  absl::Status ResumeDense(worker::SaveId save);
  absl::Status MergeShares(int rank, const worker::MergeSharesTask& task);

  SimContext& context_;
  SimScheduler& scheduler_;
  DataFrames& frames_;
  const SimServers& servers_;
  SaveCheck& saves_;
  std::vector<std::unique_ptr<Worker>> workers_;
  worker::TrainerEffects effects_;
  std::vector<Outgoing> segments_;  // of collectives, on their way out; scratch
  int evaluations_ = 0, resumes_ = 0;
  std::map<worker::SaveId, Gathered> gathered_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_SIM_WORKERS_H_
