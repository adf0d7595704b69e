// Tells whether two workers have trained on the same rows, from a few bytes of each: hashes of the ids that
// the rows have, of the first rows in their order and of a whole epoch in any order.
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

  // The next rows of the first epoch; those of later ones are ignored.
  void Add(const data::Batch& batch);
  // The first epoch is over. `whole`: all of its rows were added.
  void EndEpoch(bool whole);

  // 0 if not known yet, or if there are too few different rows to tell two workers apart.
  uint64_t first_rows() const;
  uint64_t epoch() const { return over_ && varied() ? epoch_ : 0; }

 private:
  static constexpr size_t kDifferent = 32;
  bool varied() const { return different_.size() == kDifferent; }

  bool over_ = false;
  int64_t rows_ = 0;
  absl::flat_hash_set<uint64_t> different_;  // rows, as long as there are not enough
  uint64_t first_ = 0, epoch_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ROW_FINGERPRINT_H_
