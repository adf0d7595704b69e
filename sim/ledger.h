// What every worker has computed, key by key, and so what any row of the toy model may hold. The
// judge of the simulator: a row that it cannot explain has lost an update or taken one twice.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_LEDGER_H_
#define TANDEM_SIM_LEDGER_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sim/toy_model.h"

namespace tandem {

class Ledger {
 public:
  explicit Ledger(const ToyModel& model) : model_(model) {}

  // Worker `rank` has computed an update of this row. Steps of one worker come in order.
  void Record(uint32_t table, uint64_t key, int rank, int64_t step);

  // How many updates of each worker the row has seen. INTERNAL if the row is not the first value
  // less exactly the first so many updates of each worker, each once.
  absl::StatusOr<std::vector<int64_t>> Explain(uint32_t table, uint64_t key,
                                               absl::Span<const float> row) const;

  // Updates of `rank` for this row at steps below `step`.
  int64_t CountBefore(uint32_t table, uint64_t key, int rank, int64_t step) const;

  // All rows that were ever updated.
  std::vector<std::pair<uint32_t, uint64_t>> Rows() const;

 private:
  struct Updates {                 // of one worker to one row
    std::vector<int64_t> steps;    // growing
    std::vector<int64_t> tickets;  // sum over the first i + 1
  };
  const Updates* Find(uint32_t table, uint64_t key, int rank) const;

  const ToyModel& model_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<Updates>> rows_;
};

}  // namespace tandem

#endif  // TANDEM_SIM_LEDGER_H_
