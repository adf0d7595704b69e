// Checks a simulated world with the toy model. The judge writes down the updates that workers
// compute, and compares the values of rows with them when rows are read (ledger.h). It does not
// know frames or shards, only inputs and outputs. An update counts once a shard has recorded its
// result (for replicas: once it is computed).
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_JUDGE_H_
#define TANDEM_TESTS_SIM_PROOF_JUDGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/range_map.h"
#include "proto/wire.pb.h"
#include "server/record/measure.h"
#include "server/record/update_record.h"
#include "tests/sim/proof/ledger.h"
#include "tests/sim/proof/quorum_judge.h"
#include "tests/sim/proof/toy_model.h"

namespace tandem {

class Judge {
 public:
  struct Options {
    bool explain = true;       // check values of rows; needs SGD with learning rate 1 everywhere
    bool keep_ranges = false;  // for RangesOf
    std::function<void(const std::string& what)> fail;
    std::function<int64_t(int rank)> step_of;  // the current step of a worker
    std::shared_ptr<Ledger> ledger;            // of all attempts of a run; null: a new one
  };
  // References must outlive this.
  Judge(const job::ResolvedJob& plan, const ToyModel& model, Options options);

  // Inputs. This map gives the range of each slice of a step. Ranges may move, but are not split.
  void set_ranges(std::shared_ptr<const RangeMap> map) { map_ = std::move(map); }
  // The worker resumes from a checkpoint. Comes before its other inputs.
  void Resume(int rank, const TrainPosition& start);
  // Another process takes the worker's place in the same epoch, after so many evaluations of this
  // attempt. It may compute steps again that the dead process has computed. Each range takes one of
  // the two updates, so such a step counts once. Both processes must train on the same rows.
  void Replace(int rank, int64_t evaluations);
  int64_t evaluations_before(int rank) const {
    return workers_[static_cast<size_t>(rank)].evaluations;
  }
  void OnEpoch(int rank, int64_t epoch, int64_t first_step);
  // The worker has fetched the batch of `step`, and will read its rows.
  void OnFetch(int rank, int64_t step);
  void OnPush(int rank, int64_t step);
  void OnDelayedFinished() { delayed_finished_ = true; }
  // Worker `rank` has computed updates of these rows at `step`, each `norm` times a whole update.
  // `keys`: as in frames.
  void OnUpdates(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys,
                 double norm);
  // The same for the dense parameters, which are one row here. `blocks`: empty unless they are on
  // servers. If sums do not wait for all workers, `norm` is the number of samples of the step.
  void OnDenseUpdate(int rank, int64_t step, absl::Span<const uint64_t> blocks, double norm);
  // The result of an update from its shard. The policy tells from these numbers which share of the
  // update the rows have taken.
  void OnRecord(const server::UpdateRecord& record);

  // Checks.
  void CheckRead(int rank, int64_t step, uint32_t table, uint64_t key, absl::Span<const float> row);
  void CheckDenseRead(int rank, int64_t step, absl::Span<const float> row);
  // In a checkpoint: the row, or the first block of dense parameters on servers, has every update
  // of the steps that its range had closed, and no later one. `row` is empty if no file has the
  // row. A row that is there has such an update.
  void CheckSaved(const policies::RangeProgress& progress, uint32_t table, uint64_t key,
                  absl::Span<const float> row);
  // In a checkpoint: replicas of dense parameters have every update of the steps below `step`.
  void CheckDenseSaved(int64_t step, absl::Span<const float> row);
  // At an evaluation or at the end: the row must contain every update. `version`: that of the
  // range when the row was read; -1: not known.
  void CheckEvaluated(int rank, uint32_t table, uint64_t key, absl::Span<const float> row,
                      int64_t version = -1);
  void CheckDenseEvaluated(int rank, absl::Span<const float> row) {
    if (quorum_ != nullptr) return quorum_->CheckWhole(rank, row);
    if (JudgesDense()) CheckEvaluated(rank, DenseTable(), ToyModel::kDenseKey, row);
  }
  // The judge of dense sums that do not wait for all workers; null if there are none.
  QuorumJudge* quorum() { return quorum_.get(); }
  // Worker `rank` begins `step`. Checks that no worker which still has data is further behind than
  // a policy's bound allows. This is the true clock gap, seen from outside.
  void CheckGap(int rank, int64_t step);

  int64_t first_step_of_epoch(int rank) const {
    return workers_[static_cast<size_t>(rank)].epoch_first_step;
  }
  const Ledger& ledger() const { return *ledger_; }
  // The number of (worker, step, range) with rows of a table, in this attempt.
  uint64_t computed(uint32_t table) const { return computed_[table]; }
  // The samples of recorded updates of a table, and how many of them counted; in this attempt.
  const server::SampleCounts& counted(uint32_t table) const { return counted_[table]; }
  // Ranges in which the update of (rank, step) has rows.
  std::set<uint32_t> RangesOf(int rank, int64_t step) const;
  uint32_t DenseTable() const;  // in the ledger

 private:
  struct WorkerState {
    int64_t clock = 0;  // steps pushed, from its frames
    int64_t epoch = -1, epoch_first_step = 0;
    int64_t computed = 0;       // the step after the last one that was computed
    int64_t computed_dead = 0;  // the same, by dead processes of this rank
    int64_t evaluations = 0;    // before this process came
    // By step, the last ones: versions_ when the worker had fetched the batch of the step.
    std::map<int64_t, std::map<uint32_t, int64_t>> fetched;
  };
  // The last fold of a range.
  struct LastFold {
    bool merged = false;  // more updates of the fold may come
    int64_t version = 0, step = 0;
    int64_t number = 0;
  };
  // True if a dead process of this rank has computed the step. Then it must have updated these
  // rows.
  bool IsAgain(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys);

  // The steps of worker `rank` that a read of worker `reader` for `step` must see, unless a policy
  // that takes steps together says exactly which ones.
  int64_t SeenBelow(int reader, int64_t step, int rank, const policies::Properties& policy) const;
  // The same checks for rows that have lives.
  void CheckLivesRead(int rank, int64_t step, uint32_t table, uint64_t key,
                      absl::Span<const float> row);
  void CheckLivesSaved(const policies::RangeProgress& progress, uint32_t table, uint64_t key,
                       absl::Span<const float> row);
  // By rank: the steps of a worker that a checkpoint with this progress has, but for those that an
  // open batch holds.
  std::vector<int64_t> SavedBelow(const policies::RangeProgress& progress, uint32_t table) const;
  // A version that `range` had when the worker fetched the batch of this step, or before.
  int64_t VersionAtFetch(int rank, int64_t step, uint32_t range) const;
  Ledger::Fold FoldOf(const server::UpdateRecord& record);
  void CheckExact(int reader, int64_t step, uint32_t table, uint64_t key,
                  const std::vector<double>& taken);
  void CheckBounds(int reader, int64_t step, uint32_t table, uint64_t key,
                   const std::vector<double>& taken);
  // The range of the first copy, if no other copy has recorded the update yet.
  std::optional<uint32_t> FirstOfCopies(const server::UpdateRecord& record);
  void Settle(uint32_t range, int rank, int64_t step, double share, const Ledger::Fold& fold);
  bool HasLives(uint32_t table) const {
    return table < plan_.tables.size() && ledger_->rules(table).limited;
  }
  const policies::Properties& PropertiesOf(uint32_t table) const {
    return plan_.groups[plan_.tables[table].group].properties;
  }
  bool DenseOnServers() const { return plan_.dense_table >= 0; }
  // Sums cannot check replicas that take local steps. tests/sim/local_steps_test.cc compares these
  // with a plain loop. With a quorum, quorum_ checks them.
  bool JudgesDense() const {
    return DenseOnServers() ||
           (quorum_ == nullptr && plan_.job.dense().synchroniser() == Dense::ALLREDUCE);
  }

  const job::ResolvedJob& plan_;
  const ToyModel& model_;
  const Options options_;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;  // by group
  const std::shared_ptr<Ledger> ledger_;
  // By (range of the first copy, rank, step): the ranges that have recorded the update, until
  // all have.
  std::map<std::tuple<uint32_t, int, int64_t>, std::set<uint32_t>> told_;
  std::unique_ptr<QuorumJudge> quorum_;
  std::shared_ptr<const RangeMap> map_;
  std::vector<WorkerState> workers_;
  bool delayed_finished_ = false;
  std::vector<uint64_t> computed_;             // by table
  std::vector<server::SampleCounts> counted_;  // by table
  std::map<std::pair<int, int64_t>, std::set<uint32_t>> ranges_of_;
  std::map<uint32_t, LastFold> folds_;    // by range
  std::map<uint32_t, int64_t> versions_;  // by range: at least this; that of its last fold
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_JUDGE_H_
