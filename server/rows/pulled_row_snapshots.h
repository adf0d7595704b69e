// Copies of rows as workers have read them, until the updates that were computed from them arrive.
// For policies that compare a row now with the row as it was read (Properties::rows_as_read).
//
// Only the last reads of each worker are kept, so that a worker that reads and never pushes costs
// no more than others. A row that is not remembered counts as unchanged since the read. Places are
// reused with their memory, so a range that runs for ever allocates nothing.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_PULLED_ROW_SNAPSHOTS_H_
#define TANDEM_SERVER_ROWS_PULLED_ROW_SNAPSHOTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::server {

class PulledRowSnapshots {
 public:
  // For rows of `dim` floats. Keeps the latest `reads` reads of each worker.
  PulledRowSnapshots(int dim, int workers, int reads);

  // The read of worker `rank` for `step` has been answered with `rows`, [keys, dim], at `version`.
  // A repeated answer replaces the first one if the version is the same.
  void Keep(int rank, int64_t step, int64_t version, absl::Span<const uint64_t> keys,
            absl::Span<const float> rows);

  // Sets rows[i] to the row of keys[i] as the worker of this update read it, or to null if that is
  // not known. The keys must be in the order of the read.
  void Find(const policies::Update& update, absl::Span<const uint64_t> keys,
            std::vector<const float*>* rows) const;

  // The update of `step` has been applied or dropped: forgets the reads for this step and for
  // earlier ones.
  void Forget(int rank, int64_t step);

  size_t bytes() const { return bytes_; }

  // The bytes that a range move carries.
  std::string Encode() const;
  absl::Status Decode(absl::string_view bytes);

 private:
  struct Read {
    int64_t step = -1;  // -1: the place is free
    int64_t version = 0;
    std::vector<uint64_t> keys;
    std::vector<float> rows;
    size_t Bytes() const { return keys.size() * sizeof(uint64_t) + rows.size() * sizeof(float); }
  };
  void Free(Read* read);

  const size_t dim_;
  std::vector<std::vector<Read>> of_worker_;
  size_t bytes_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_PULLED_ROW_SNAPSHOTS_H_
