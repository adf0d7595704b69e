// The judge of a simulated world with the toy model: what workers have computed is written down, and
// rows are held to it as they are read, by their values (ledger.h). It knows nothing of frames and
// shards: only what went in and what comes out.
// An update counts once a shard has recorded what became of it (or, of replicas, once computed).
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_JUDGE_H_
#define TANDEM_SIM_JUDGE_H_

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
#include "server/update_record.h"
#include "sim/ledger.h"
#include "sim/quorum_judge.h"
#include "sim/toy_model.h"

namespace tandem::sim {

class Judge {
 public:
  struct Options {
    bool explain = true;       // look into rows; needs SGD at learning rate 1 everywhere
    bool keep_ranges = false;  // for RangesOf
    std::function<void(const std::string& what)> fail;
    std::function<int64_t(int rank)> step_of;  // the step that a worker has come to
  };
  // References outlive this.
  Judge(const job::JobPlan& plan, const ToyModel& model, Options options);

  // What it is told. Every slice of a step has the range of this map (ranges move, but are not cut).
  void set_ranges(std::shared_ptr<const RangeMap> map) { map_ = std::move(map); }
  void OnEpoch(int rank, int64_t epoch, int64_t first_step);
  void OnPush(int rank, int64_t step);
  void OnDelayedFinished() { delayed_finished_ = true; }
  // Worker `rank` has computed updates of these rows at `step`, each `norm` times what one whole
  // update takes; `keys` as they travel.
  void OnUpdates(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys,
                 double norm);
  // The same of the dense parameters, which are one row here. `blocks`: on servers, else none. Where
  // sums do not wait for all, `norm` is the samples of the step.
  void OnDenseUpdate(int rank, int64_t step, absl::Span<const uint64_t> blocks, double norm);
  // What became of an update, as its shard says. How much of it the rows have taken is what its
  // policy says for an update of these numbers.
  void OnRecord(const server::UpdateRecord& record);

  // What it looks at.
  void CheckRead(int rank, int64_t step, uint32_t table, uint64_t key, absl::Span<const float> row);
  void CheckDenseRead(int rank, int64_t step, absl::Span<const float> row);
  // At an evaluation, in a save, or at the end: every update is in.
  void CheckEvaluated(int rank, uint32_t table, uint64_t key, absl::Span<const float> row);
  void CheckDenseEvaluated(int rank, absl::Span<const float> row) {
    if (quorum_ != nullptr) return quorum_->CheckWhole(rank, row);
    if (JudgesDense()) CheckEvaluated(rank, DenseTable(), ToyModel::kDenseKey, row);
  }
  // Of dense sums that do not wait for all; null where there are none.
  QuorumJudge* quorum() { return quorum_.get(); }
  // Worker `rank` begins `step`: no worker that still has data is further behind than a policy's
  // bound allows. The true clock gap, seen from outside.
  void CheckGap(int rank, int64_t step);

  // (table, key) of all rows that were ever updated.
  std::vector<std::pair<uint32_t, uint64_t>> Rows() const { return ledger_.Rows(); }
  // (worker, step, range) with rows, of a table.
  uint64_t computed(uint32_t table) const { return computed_[table]; }
  // Ranges that the update of (rank, step) has rows in.
  std::set<uint32_t> RangesOf(int rank, int64_t step) const;
  uint32_t DenseTable() const;  // in the ledger

 private:
  struct WorkerState {
    int64_t clock = 0;  // steps pushed, as its frames say
    int64_t epoch = -1, epoch_first_step = 0;
  };

  void CheckExact(int reader, int64_t step, uint32_t table, uint64_t key,
                  const std::vector<double>& taken);
  void CheckBounds(int reader, int64_t step, uint32_t table, uint64_t key,
                   const std::vector<double>& taken);
  // The range of the first copy, if no other copy has told of the update.
  std::optional<uint32_t> FirstOfCopies(const server::UpdateRecord& record);
  void Settle(uint32_t range, int rank, int64_t step, double share);
  const policies::Properties& PropertiesOf(uint32_t table) const {
    return plan_.groups[plan_.tables[table].group].properties;
  }
  bool DenseOnServers() const { return plan_.dense_table >= 0; }
  // Of replicas that step by themselves no sum says what they should be: a plain loop does
  // (tests/sim/local_steps_test.cc). With a quorum they are quorum_'s.
  bool JudgesDense() const {
    return DenseOnServers() ||
           (quorum_ == nullptr && plan_.job.dense().synchroniser() == Dense::ALLREDUCE);
  }

  const job::JobPlan& plan_;
  const ToyModel& model_;
  const Options options_;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;  // by group
  Ledger ledger_;
  // By (range of the first copy, rank, step): the ranges that have told, until all copies have.
  std::map<std::tuple<uint32_t, int, int64_t>, std::set<uint32_t>> told_;
  std::unique_ptr<QuorumJudge> quorum_;
  std::shared_ptr<const RangeMap> map_;
  std::vector<WorkerState> workers_;
  bool delayed_finished_ = false;
  std::vector<uint64_t> computed_;  // by table
  std::map<std::pair<int, int64_t>, std::set<uint32_t>> ranges_of_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_JUDGE_H_
