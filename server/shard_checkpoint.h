// Writes one shard's part of a checkpoint, a slice of rows at a time. Between slices the shard
// answers reads and sends WAITING messages, however long the checkpoint takes.
//
// All slices are of the same moment. No worker pushes until the checkpoint is done
// (trainer_core.h). Reads may still create rows, but such rows have initial values, which need no
// saving. If a range changes or moves all the same, the checkpoint fails. KEY_VALUE tables are
// different, because programs write to them at any time. A range of such a table is copied in one
// slice, so that its file shows one moment; different ranges may show different moments.
//
// Thread safety: none needed; used on the shard's thread. Another thread may finish a RangeEncoder.
#ifndef TANDEM_SERVER_SHARD_CHECKPOINT_H_
#define TANDEM_SERVER_SHARD_CHECKPOINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/range_file.h"
#include "server/shard_core.h"

namespace tandem::server {

class ShardCheckpoint {
 public:
  // A file of the checkpoint. Its encoder has all rows; Finish adds the checksum.
  struct File {
    std::string name;
    RangeEncoder encoder;
  };

  // `shard` outlives this object.
  explicit ShardCheckpoint(ShardCore* shard) : shard_(*shard) {}

  // Copies at most `rows` rows. Returns a file when the last row of its range has been copied. Does
  // nothing before the first slice while a range is on its way to or from the shard.
  // FAILED_PRECONDITION: a range has changed.
  absl::StatusOr<std::optional<File>> Step(size_t rows);
  // True if the next Step will do something.
  bool MayStep() const { return !done_ && (begun_ || shard_.ranges().Settled()); }
  bool done() const { return done_; }  // Step has returned all files

 private:
  void BeginRange(const Range& range);

  ShardCore& shard_;
  bool begun_ = false, done_ = false;
  std::vector<uint32_t> ranges_;  // ranges that remain, the next one last
  // The current range.
  std::optional<RangeEncoder> encoder_;
  RangeImage head_;                     // without rows
  size_t copied_ = 0;                   // rows
  std::vector<float> weights_, slots_;  // of one slice
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_CHECKPOINT_H_
