// What every worker has computed, key by key, what became of it, and so what any row of the toy model
// may hold. The judge of the simulator: a row that it cannot explain has lost an update or taken one
// twice.
//
// An update counts with a weight: the share of it that its policy lets into the row. 1 is all of it,
// as of the mean over all workers; a dropped one has 0. Until a shard has recorded what became of an
// update (or the allreduce has summed it), no row may show it.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_LEDGER_H_
#define TANDEM_SIM_LEDGER_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sim/toy_model.h"

namespace tandem::sim {

class Ledger {
 public:
  explicit Ledger(const ToyModel& model) : model_(model) {}

  // Worker `rank` has computed an update of this row, which lies in `range`; its gradient is `norm`
  // times what one whole update takes. Steps of one worker come in order.
  void Record(uint32_t table, uint64_t key, uint32_t range, int rank, int64_t step, double norm);

  // The update of (rank, step) in `range` has been settled: `share` of each gradient was taken.
  // INTERNAL if it was never computed, or was settled before.
  absl::Status Settle(uint32_t range, int rank, int64_t step, double share);

  // How much of each worker the row has taken. INTERNAL if the row is not the first value less
  // exactly the first so many settled updates of each worker, each once.
  absl::StatusOr<std::vector<double>> Explain(uint32_t table, uint64_t key,
                                              absl::Span<const float> row) const;

  // Weight of the settled updates of `rank` for this row at steps below `step`.
  double WeightBefore(uint32_t table, uint64_t key, int rank, int64_t step) const;

  // Has something become of every update of `rank` for this row?
  bool AllSettled(uint32_t table, uint64_t key, int rank) const;

  // All rows that were ever updated.
  std::vector<std::pair<uint32_t, uint64_t>> Rows() const;

  // Weights that are less apart than this are the same.
  static constexpr double kTolerance = 2e-3;

 private:
  struct One {
    int64_t step = 0, ticket = 0;
    double norm = 0;
    double weight = -1;  // below 0: not settled
  };
  using Updates = std::vector<One>;  // of one worker to one row, by step
  const Updates* Find(uint32_t table, uint64_t key, int rank) const;

  const ToyModel& model_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Updates>> rows_;
  // By (range, rank, step), until it is settled: the lists that it is in.
  std::map<std::tuple<uint32_t, int, int64_t>, std::vector<Updates*>> open_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_LEDGER_H_
