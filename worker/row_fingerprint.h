// Tells whether two workers have trained on the same rows, from a few bytes of each worker. The
// bytes are hashes of the rows' ids: one hash of the first rows in their order, one of a whole
// epoch in any order.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_ROW_FINGERPRINT_H_
#define TANDEM_WORKER_ROW_FINGERPRINT_H_

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "data/batch.h"

namespace tandem::worker {

class RowFingerprint {
 public:
  static constexpr int64_t kFirstRows = 64;

  // Adds the next rows of the first epoch; ignores rows of later epochs.
  void Add(const data::Batch& batch);
  // The first epoch is over. `whole`: all its rows were added.
  void EndEpoch(bool whole);

  // 0 if the hash is not known yet, or if there are too few different rows to tell two workers
  // apart.
  uint64_t first_rows() const;
  uint64_t epoch() const { return over_ && varied() ? epoch_ : 0; }

 private:
  static constexpr size_t kDifferent = 32;
  bool varied() const { return different_.size() == kDifferent; }

  bool over_ = false;
  int64_t rows_ = 0;
  absl::flat_hash_set<uint64_t> different_;  // row hashes, until kDifferent are found
  uint64_t first_ = 0, epoch_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ROW_FINGERPRINT_H_
