// WorkerSums adds up the gradients that a range holds of each worker
// (policies::Properties::fold_by_worker). The first update of a worker in the open group gets the
// sum. The others keep their numbers and give up their gradients.
//
// The gradients of a worker are added up when those that wait take more bytes than their sum. So a
// worker takes at most twice the bytes of its sum and one push, and each byte is copied about
// twice. A sum has memory of its own, because copies of a range for a checkpoint share that of its
// updates.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_WORKER_SUMS_H_
#define TANDEM_SERVER_WORKER_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"
#include "server/keyed_sums.h"
#include "server/rows/held_updates.h"

namespace tandem::server {

class WorkerSums {
 public:
  // Measures the staleness of the rows of an update before it gives up its gradients. The fold
  // would measure the same: no row changes while updates wait for it.
  using MeasureRows = std::function<RowStaleness(const HeldUpdate& update)>;

  // `scratch` and `source` outlive this.
  WorkerSums(int dim, int workers, MeasureRows measure, KeyedSums* scratch, BufferSource* source);

  // The last update of the open group has just joined it, with rows. Returns the bytes that the
  // group no longer holds.
  size_t OnHeld(HeldStep* group);
  // The group is folded. Sorts it by rank and adds up each worker. A fold divides the gradients of
  // updates[i] by divisors[i]: then their sum is the mean over the workers of each worker's mean.
  // Returns the bytes that the group no longer holds.
  size_t Close(HeldStep* group, std::vector<uint64_t>* divisors);

 private:
  struct Held {
    size_t summed = 0;   // bytes of the first update of a worker
    size_t waiting = 0;  // bytes of updates that are not added to it yet
  };

  size_t Add(int rank, absl::Span<HeldUpdate> updates);

  const size_t dim_;
  const MeasureRows measure_;
  KeyedSums& scratch_;
  BufferSource& source_;
  std::vector<Held> held_;          // by rank
  std::vector<HeldUpdate*> parts_;  // scratch
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_WORKER_SUMS_H_
