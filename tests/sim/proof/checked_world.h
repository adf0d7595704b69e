// CheckedWorld is a simulated world (tools/sim/world.h) with checks. Without a runner of its own
// (WorldOptions::make_runner) it runs a toy model that shows which updates were applied
// (toy_runner.h).
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
//       (row_lives.h), also in a checkpoint. By AGE no pull reads a row that is too old.
// After each event of a shard, the toy world also counts the clocks and sums of the shard again,
// range by range and worker by worker, and checks that no read waits without a reason
// (ServerChecks::CheckSums). If servers have a memory budget, the world compares it with the
// memory that their ranges and checkpoints use (ServerChecks::CheckMemory). Rows of AT_BUDGET never
// end a job. Other rows that take too much end it with a last checkpoint.
// At the end the world checks all rows again, and that frozen tables have none. With any runner it
// also checks that sent = applied + merged + dropped (= computed by the toy model), that the
// admitted rows minus the evicted ones are the rows that exist, that one shard owns each range,
// that dense replicas are equal, and that checkpoints are complete (checkpoint_check.h).
//
// A process may die or be stopped at any event. lives.h restarts the processes, in another world
// that resumes from a checkpoint.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_CHECKED_WORLD_H_
#define TANDEM_TESTS_SIM_PROOF_CHECKED_WORLD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job.h"
#include "tests/sim/proof/checkpoint_check.h"
#include "tests/sim/proof/judge.h"
#include "tests/sim/proof/ledger.h"
#include "tests/sim/proof/server_checks.h"
#include "tests/sim/proof/toy_model.h"
#include "tools/sim/observer.h"
#include "tools/sim/world.h"

namespace tandem {

struct CheckedWorldOptions : sim::WorldOptions {
  ToyModel::Options model;         // of the toy model
  std::shared_ptr<Ledger> ledger;  // of all attempts of a run; null: a ledger of its own
  bool explain = true;      // check rows by their values; needs SGD at learning rate 1 everywhere
  bool log_events = false;  // keep events() (slow)
};

class CheckedWorld final : private sim::Observer, public sim::World {
 public:
  // `plan` must outlive the world. The error of its Run also names the failed check.
  static absl::StatusOr<std::unique_ptr<CheckedWorld>> New(const job::ResolvedJob& plan,
                                                           const CheckedWorldOptions& options);

  // After Run.
  std::vector<float> Row(uint32_t table, uint64_t key) { return server_checks_.Row(table, key); }
  std::vector<float> DenseValues(int rank);
  std::vector<std::pair<uint32_t, uint64_t>> TrainedRows() const;  // toy model only
  server::UpdateStats Stats(uint32_t table) const { return server_checks_.Stats(table); }
  const ServerChecks& server_checks() const { return server_checks_; }
  int moves() { return parts().scheduler.moves(); }    // of ranges
  int breaks() { return parts().scheduler.breaks(); }  // of connections to the scheduler
  int checkpoints() const { return checkpoints_.checkpoints(); }
  int evaluations() const { return workers().evaluations(); }
  int resumes() const { return workers().resumes(); }  // of options.resume_dense
  int64_t steps(int rank) const { return workers().core(rank).step(); }
  uint64_t rows_cached() const { return workers().rows_cached(); }
  uint64_t frames_resent() const { return workers().frames_resent(); }
  // With log_events: the events of each range, by id, in order.
  const std::map<uint32_t, std::vector<RangeEvent>>& events() const {
    return server_checks_.events();
  }
  // Toy model only: with log_events, the ranges in which the update of (rank, step) has rows;
  // the model.
  std::set<uint32_t> RangesOf(int rank, int64_t step) const { return judge_->RangesOf(rank, step); }
  const ToyModel& model() const { return *model_; }
  // Toy model only, for a job whose dense sums do not wait for all workers.
  const QuorumJudge& quorum() const { return *judge_->quorum(); }

 private:
  CheckedWorld(const job::ResolvedJob& plan, const CheckedWorldOptions& options);
  sim::WorldOptions WithRunner(const sim::WorldOptions& options);
  void MakeJudge(const CheckedWorldOptions& options);
  sim::SimContext& context() { return parts().context; }

  void OnResume(int rank, const TrainPosition& start) override;
  void OnReplace(int rank, int64_t evaluations) override;
  void OnStep(int rank, int64_t step) override;
  void OnPush(int rank, int64_t step) override;
  sim::SumObserver& sums() override;
  void OnRanges(const std::shared_ptr<const RangeMap>& ranges) override;
  void OnPushTaken(EndpointId shard, const ParsedFrame& push) override;
  void OnDelayedFinished() override;
  void AfterShard(EndpointId shard, const server::ShardEffects& effects) override;
  void OnMemory(int server) override { server_checks_.CheckMemory(server); }
  absl::Status OnRangeFile(const std::string& folder, const std::string& file,
                           server::RangeImage image) override;
  absl::Status OnDenseFile(const std::string& folder, const std::string& bytes) override;
  void OnCommit(const std::string& folder, const RangeMap& ranges, int64_t step,
                const std::string& record) override;
  void OnAbandon(const std::string& folder) override { checkpoints_.Abandon(folder); }
  void OnEnd() override;

  void CheckReplicas();
  void CheckFinalRows();
  void CheckCounts();
  void CheckSamples();
  void CheckRowCounts();
  void CheckSumsMissed();
  void CheckEvaluations();

  const bool explain_, log_events_;
  std::unique_ptr<ToyModel> model_;  // this and judge_ are null with another runner
  std::unique_ptr<Judge> judge_;
  CheckpointCheck checkpoints_;
  ServerChecks server_checks_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_CHECKED_WORLD_H_
