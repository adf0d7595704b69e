// Rows as workers have read them, until the updates come that were computed from them: for policies
// that compare a row now with the row as it was read (Properties::rows_as_read).
//
// Of each worker only its last reads are kept, so that a worker that reads and never pushes costs no
// more than others; what is forgotten counts as unchanged since. Places are used again with their
// memory: a range that goes on for ever allocates nothing.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_READ_MEMORY_H_
#define TANDEM_SERVER_READ_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::server {

class ReadMemory {
 public:
  // Rows of `dim` floats; at most `reads` of each worker are kept, the latest.
  ReadMemory(int dim, int workers, int reads);

  // Worker `rank` has been answered `rows`, [keys, dim], for `step` at `version`. A read that is
  // answered again takes the place of the first answer if the version is the same.
  void Keep(int rank, int64_t step, int64_t version, absl::Span<const uint64_t> keys,
            absl::Span<const float> rows);

  // rows[i] = keys[i] as the worker of this update read it; null where that is not known. The keys are
  // in the order in which they were read.
  void Find(const policies::Update& update, absl::Span<const uint64_t> keys,
            std::vector<const float*>* rows) const;

  // The update of `step` has been applied or dropped: forgets what was read for it and before.
  void Forget(int rank, int64_t step);

  size_t bytes() const { return bytes_; }

  // What a range move carries.
  std::string Encode() const;
  absl::Status Decode(absl::string_view bytes);

 private:
  struct Read {
    int64_t step = -1;  // -1: a place that is free
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

#endif  // TANDEM_SERVER_READ_MEMORY_H_
