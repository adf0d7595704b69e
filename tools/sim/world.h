// A whole cluster in one process and one thread: the scheduler, server, shard and trainer cores of
// live processes, under a virtual clock and over a seeded network. Ranges move between shards
// during the run. Workers compute with any TaskRunner: by default with a toy model that shows which
// updates were applied (toy_runner.h), or with real readers and models.
//
// The parts are the scheduler and the connections to it (sim_scheduler.h), servers (sim_servers.h),
// workers (sim_workers.h), frames between them (data_frames.h), and their shared state
// (sim_context.h). This class connects the parts, runs them, and checks the result.
//
// The judge (judge.h) checks the values that pulls return while the toy model runs:
//   (1) every row is explained: no update is lost or applied twice, and each worker's are in order;
//   (2) no pull is beyond its bound: lockstep policies see exactly the steps they should, others
//       all workers' steps below k - read_bound and their own below k - depth;
//   (3) evaluation sees every push;
//   (4) no worker starts a step further ahead of the slowest than its policies' bound allows;
//   (5) dense sums that do not wait for all workers have every gradient once, and in time
//       (quorum_judge.h);
//   (6) a row of a table with admission or eviction is absent, or has the updates of one life
//       (row_lives.h), also in a checkpoint. By AGE no row is read that is too old.
// After each event of a shard, the toy world also compares the clocks and sums that the shard keeps
// up to date with those of a look at each range and worker, and checks that no read waits without a
// reason (SimServers::CheckSums). If servers have a memory budget, the world compares it with the
// memory that their ranges and checkpoints use (SimServers::CheckMemory). Rows of AT_BUDGET never
// end a job. Other rows that take too much end it with a last checkpoint.
// At the end the world checks all rows again, and that frozen tables have none. With any runner it
// also checks that sent = applied + merged + dropped (= computed by the toy model), that the rows
// that came and went give the rows that there are, that one shard owns each range, that dense
// replicas are equal, and that checkpoints are complete (checkpoint_check.h). A run that does not
// end within `limit` of virtual time fails with a list of waits.
//
// A process may die or be stopped at any event. lives.h restarts the processes, in another world
// that resumes from a checkpoint.
//
// The same options give the same run, bit for bit (trace_hash).
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_WORLD_H_
#define TANDEM_TOOLS_SIM_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "tools/sim/checkpoint_check.h"
#include "tools/sim/data_frames.h"
#include "tools/sim/judge.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_scheduler.h"
#include "tools/sim/sim_servers.h"
#include "tools/sim/sim_workers.h"
#include "tools/sim/toy_model.h"
#include "tools/sim/world_options.h"

namespace tandem::sim {

class World {
 public:
  // `plan` must outlive the world.
  static absl::StatusOr<std::unique_ptr<World>> New(const job::ResolvedJob& plan,
                                                    const WorldOptions& options);

  // Runs the job to its end. The error names the failed check, and the waits of all processes.
  absl::Status Run();
  // The parts of Run: Begin, then RunNext until ended(), then Finish.
  void Begin();
  void RunNext();
  bool ended() const { return scheduler_.core().done() || !context_.failure.ok(); }
  absl::Status Finish();

  // For accidents.
  struct Parts {
    SimContext& context;
    SimScheduler& scheduler;
    SimWorkers& workers;
  };
  Parts parts() { return {context_, scheduler_, workers_}; }

  // The last lines of the trace.
  std::string TraceText() const { return context_.trace.Text(); }
  uint64_t trace_hash() const { return context_.trace.hash(); }
  absl::Duration elapsed() const { return context_.agenda.elapsed(); }
  uint64_t event_count() const { return event_count_; }

  // After Run.
  const SimServers& servers() const { return servers_; }
  std::vector<float> Row(uint32_t table, uint64_t key) { return servers_.Row(table, key); }
  std::vector<float> DenseValues(int rank);
  std::vector<std::pair<uint32_t, uint64_t>> TrainedRows() const;  // toy model only
  const std::vector<server::UpdateRecord>& records() const { return servers_.records(); }
  server::UpdateStats Stats(uint32_t table) const { return servers_.Stats(table); }
  const scheduler::JobReport& report() const { return scheduler_.core().report(); }
  int moves() const { return scheduler_.moves(); }    // of ranges
  int breaks() const { return scheduler_.breaks(); }  // of connections to the scheduler
  int checkpoints() const { return checkpoints_.checkpoints(); }
  int evaluations() const { return workers_.evaluations(); }
  int resumes() const { return workers_.resumes(); }  // of options.resume_dense
  int64_t steps(int rank) const { return workers_.core(rank).step(); }
  uint64_t rows_cached() const { return workers_.rows_cached(); }
  uint64_t frames_resent() const { return workers_.frames_resent(); }
  // With log_events: the events of each range, by id, in order.
  const std::map<uint32_t, std::vector<RangeEvent>>& events() const { return servers_.events(); }
  // Toy model only: with log_events, the ranges in which the update of (rank, step) has rows;
  // the model.
  std::set<uint32_t> RangesOf(int rank, int64_t step) const { return judge_->RangesOf(rank, step); }
  const ToyModel& model() const { return *model_; }
  // Toy model only, for a job whose dense sums do not wait for all workers.
  const QuorumJudge& quorum() const { return *judge_->quorum(); }

 private:
  World(const job::ResolvedJob& plan, const WorldOptions& options);
  absl::Status Init();
  worker::MakeTaskRunner MakeToy();

  void CheckEnd();
  void CheckReplicas();
  void CheckFinalRows();
  void CheckCounts();
  void CheckRowCounts();
  void CheckSumsMissed();
  void CheckEvaluations();

  SimContext context_;
  uint64_t event_count_ = 0;
  std::unique_ptr<ToyModel> model_;  // this and judge_ are null with another runner
  std::unique_ptr<Judge> judge_;
  DataFrames frames_;
  SimScheduler scheduler_;
  CheckpointCheck checkpoints_;
  SimServers servers_;
  SimWorkers workers_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_WORLD_H_
