// One save of one shard, a slice of rows at a time: between slices the shard answers reads and
// tells those that must wait whom they wait for, however long the save takes.
//
// All slices show one moment. While a save lasts no worker pushes (trainer_core.h), and rows that a
// read makes hold first values, which nobody need save. Should a range change or move all the same,
// the save fails. Programs write to STORE tables all the time: a range of one is copied in one slice,
// so that its file shows one moment, and each range its own.
//
// Thread safety: none needed; the shard's thread. RangeEncoders may be finished on another one.
#ifndef TANDEM_SERVER_SHARD_SAVE_H_
#define TANDEM_SERVER_SHARD_SAVE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/range_file.h"
#include "server/shard_core.h"

namespace tandem::server {

class ShardSave {
 public:
  // A file of the save, but for its checksum.
  struct File {
    std::string name;
    RangeEncoder encoder;
  };

  // `shard` outlives the save.
  explicit ShardSave(ShardCore* shard) : shard_(*shard) {}

  // Copies at most `rows` rows; at the end of a range its file comes out. Nothing happens while a
  // range is on its way to or from the shard. FAILED_PRECONDITION: a range changed.
  absl::StatusOr<std::optional<File>> Step(size_t rows);
  // The next Step has something to do.
  bool MayStep() const { return !done_ && (begun_ || shard_.Settled()); }
  bool done() const { return done_; }  // all files have come out

 private:
  void BeginRange(const Range& range);

  ShardCore& shard_;
  bool begun_ = false, done_ = false;
  std::vector<uint32_t> ranges_;  // still to be saved, the next one last
  // The range at hand.
  std::optional<RangeEncoder> encoder_;
  RangeImage head_;  // of it, without rows
  size_t copied_ = 0;
  std::vector<float> weights_, slots_;  // of a slice
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_SAVE_H_
