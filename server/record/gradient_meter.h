// GradientMeter measures how staleness changes gradients, on some rows of a range
// (staleness.gradients). For an update of a sampled row, it compares two changes of the row:
//
//   missed   the row before the update - the row as the worker read it
//   update   the row after the update - the row before the update
//
// Their cosine says whether the changes that the worker did not see point where its gradient
// points. Their lengths are relative to the length of the row before the update. If several updates
// are one step of the optimizer, each is compared with the change of the whole step. The cosine of
// a missed change of zero is undefined, and a row of length zero is not counted.
//
// The copies of rows as read, and the counts of updates, are in the range's budget. They are not
// part of checkpoints and moves: the reads before these are not measured.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_RECORD_GRADIENT_METER_H_
#define TANDEM_SERVER_RECORD_GRADIENT_METER_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "proto/wire.pb.h"
#include "server/rows/held_updates.h"
#include "server/rows/pulled_row_snapshots.h"
#include "server/rows/row_table.h"

namespace tandem::server {

// Sums over updates of sampled rows, by the bit width of the version staleness and of the number of
// earlier updates of the row.
struct GradientSums {
  struct Cell {
    uint64_t rows = 0, missed_rows = 0;
    double cosine = 0, distance = 0, update = 0;  // GradientStaleness in proto/wire.proto

    void FillMessage(GradientStaleness* out) const;
  };
  std::vector<Cell> by_staleness, by_popularity;
};

class GradientMeter {
 public:
  // Rows are sampled by a hash of their key: about `share` of them, the same rows for each seed.
  GradientMeter(int dim, int workers, int reads, double share, uint64_t seed);

  // As PulledRowSnapshots::Keep.
  void OnRead(int rank, int64_t step, int64_t version, absl::Span<const uint64_t> keys,
              absl::Span<const float> rows);
  // The optimizer is about to apply this update, perhaps with others, at `version`.
  void BeforeStep(const HeldUpdate& update, int64_t version, const RowTable& store);
  // The optimizer has applied the updates since the last call.
  void AfterStep(const RowTable& store, GradientSums* sums);
  // As PulledRowSnapshots::Forget.
  void Forget(int rank, int64_t step) { reads_.Forget(rank, step); }

  size_t bytes() const;

 private:
  // One update of one sampled row, in the step of the optimizer that is under way.
  struct Entry {
    uint64_t key = 0;
    int64_t staleness = 0;
  };
  bool Samples(uint64_t key) const;
  uint32_t* CountOf(uint64_t key);

  const size_t dim_;
  const uint64_t seed_;
  const uint64_t below_;  // keys are sampled if their hash is below this
  PulledRowSnapshots reads_;
  std::unordered_map<uint64_t, uint32_t> updates_;  // of the first sampled rows, so far
  std::vector<Entry> entries_;
  std::vector<float> read_, before_, after_;  // [entries, dim]
  // Scratch memory.
  std::vector<uint64_t> keys_;
  std::vector<float> rows_;
  std::vector<const float*> found_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_GRADIENT_METER_H_
