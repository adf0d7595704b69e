// The contents of a range at one moment, for a file or for a range move. The shard's thread makes
// the copy. Encode() does the slow work, sorting and encoding; another thread may call it.
//
// Thread safety: none; one thread at a time.
#ifndef TANDEM_SERVER_CHECKPOINT_RANGE_COPY_H_
#define TANDEM_SERVER_CHECKPOINT_RANGE_COPY_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/file.h"
#include "server/checkpoint/range_file.h"
#include "server/rows/held_updates.h"
#include "server/rows/row_copies.h"

namespace tandem::server {

struct RangeCopy {
  // Sorts the rows by position and hands the bytes of the range to `sink` (RangeEncoder). Frees the
  // copies. Returns the error of the sink, if there was one.
  absl::Status Encode(ByteSink sink) &&;
  // All bytes in memory.
  std::string Encode() &&;

  RangeImage head;            // without keys, weights, slots, ages, candidates and held
  uint64_t salt = 0;          // of Position()
  uint64_t last_samples = 0;  // n of the last closed step
  HeldQueue open, delayed;    // these share the buffers of the range
  bool in_batches = false;    // as in EncodeHeld
  // The memory of the policy, before and after the mean squares (Range::DecodeMemory).
  std::string memory_before, memory_after;
  bool has_squares = false;  // each copy ends with the row's mean squares, `dim` floats
  RowCopies rows;
};

// RangeImage::held begins with two numbers: the samples of the last closed step, and the bytes of
// held updates that follow.
inline constexpr size_t kHeldHeadBytes = 2 * sizeof(uint64_t);
// Decodes the steps that the range of a checkpoint holds back, and then its open batch, if any.
// *batches becomes the number of open batches at the end (0 or 1). `batches` may be null; otherwise
// *batches must be 0 before. The values are in memory from `source`.
absl::Status DecodeQueue(const RangeImage& image, BufferSource& source, HeldQueue* delayed,
                         size_t* batches = nullptr);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_RANGE_COPY_H_
