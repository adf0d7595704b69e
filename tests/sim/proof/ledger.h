// The updates that every worker has computed, key by key, and their results. They determine the
// possible values of each row of the toy model. A row that the ledger cannot explain has lost an
// update or has taken an update twice.
//
// Each update has a weight: the share of it that its policy applies to the row. The weight of a
// whole update (as in a mean over all workers) is 1, the weight of a dropped update is 0. A row
// may not show an update before a shard has recorded its result (or before the allreduce has
// summed it).
//
// Rows of tables with admission or eviction have lives (row_lives.h): their values do not contain
// all updates.
//
// If processes die, the run returns to a checkpoint, and so does the ledger (ReturnTo).
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_LEDGER_H_
#define TANDEM_TESTS_SIM_PROOF_LEDGER_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tests/sim/proof/row_lives.h"
#include "tests/sim/proof/toy_model.h"

namespace tandem {

class Ledger {
 public:
  // The update of worker `rank` for `step`, in one range.
  struct Slice {
    uint32_t range = 0;
    int rank = 0;
    int64_t step = 0;
    friend auto operator<=>(const Slice&, const Slice&) = default;
  };

  // A step of the optimizer in a range, at this version of it.
  struct Fold {
    int64_t number = 0;  // from NewFold
    int64_t version = 0;
  };
  // In tables whose rows have lives: how often an id was in a fold, and how often that created a
  // row, or was refused. The last two are known only if the rules are certain.
  struct Ids {
    uint64_t all = 0, admitted = 0, refused = 0;
  };

  explicit Ledger(const ToyModel& model);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  // Worker `rank` has computed an update of this row, which is in `range`. Its gradient is `norm`
  // times a whole update. Steps of one worker come in order.
  void Record(uint32_t table, uint64_t key, uint32_t range, int rank, int64_t step, double norm);

  // Whether the worker has computed an update of this row at this step.
  bool Has(uint32_t table, uint64_t key, int rank, int64_t step) const;

  // Settles the update of (rank, step) in `range`: rows have taken `share` of each gradient, in
  // this fold. INTERNAL if the update was never computed, or was settled before.
  absl::Status Settle(uint32_t range, int rank, int64_t step, double share, const Fold& fold);
  int64_t NewFold() { return ++folds_; }

  // Returns to a checkpoint that has the steps of each worker `rank` below steps[rank]. Forgets
  // all later updates. The updates that the checkpoint holds back count as not settled. INTERNAL if
  // the checkpoint has neither applied nor held an update (it is lost), or holds a later one (it
  // would be applied twice). `range_of`: the range of a row in the resumed run. `held`
  // has the same ranges.
  using RangeOf = std::function<uint32_t(uint32_t table, uint64_t key)>;
  absl::Status ReturnTo(absl::Span<const int64_t> steps, const std::set<Slice>& held,
                        const RangeOf& range_of);

  const RowRules& rules(uint32_t table) const { return rules_[table]; }
  // Since the ledger was made, or has returned to a checkpoint.
  const Ids& ids(uint32_t table) const { return ids_[table]; }
  // Since the start of the run; steps that were repeated count once.
  Ids IdsOfRun(uint32_t table) const;
  // The lives of a row of a table with such rules.
  const RowLives& Lives(uint32_t table, uint64_t key) const;

  // The weight that the row has taken from each worker. Not for tables whose rows have lives.
  // INTERNAL if the row is not its initial value minus the first settled updates of each worker,
  // each of them once.
  absl::StatusOr<std::vector<double>> Explain(uint32_t table, uint64_t key,
                                              absl::Span<const float> row) const;

  // The weight of the settled updates of `rank` for this row at steps below `step`.
  double WeightBefore(uint32_t table, uint64_t key, int rank, int64_t step) const;

  // Whether every update of `rank` for this row is settled.
  bool AllSettled(uint32_t table, uint64_t key, int rank) const;

  // All rows that were ever updated.
  std::vector<std::pair<uint32_t, uint64_t>> Rows() const;

  // Weights that differ by less than this are equal.
  static constexpr double kTolerance = 2e-3;

 private:
  struct One {
    int64_t step = 0, ticket = 0;
    uint32_t table = 0;
    double norm = 0;
    RowLives* lives = nullptr;  // of the row; null: it has none
    double weight = -1;         // below 0: not settled
  };
  using Updates = std::vector<One>;  // from one worker to one row, by step
  void Count(const RowLives& lives, size_t fold, uint32_t table, Ids* ids) const;
  const Updates* Find(uint32_t table, uint64_t key, int rank) const;

  const ToyModel model_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Updates>> rows_;
  // The lists that contain an update that is not settled yet.
  std::map<Slice, std::vector<Updates*>> open_;
  std::vector<RowRules> rules_;      // by table
  std::vector<RowLives> untouched_;  // by table: of a row that nobody has updated
  std::vector<Ids> ids_;             // by table
  std::map<std::pair<uint32_t, uint64_t>, RowLives> lives_;
  int64_t folds_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_LEDGER_H_
