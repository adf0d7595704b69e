// One shard's part of a checkpoint, while training continues. Mark() fixes the moment that the
// checkpoint shows: all ranges of the shard as they are then. Afterwards the shard's thread copies
// rows in slices, and answers frames in between. A row that changes before its slice is copied
// first (row_copies.h). Sorting, encoding and writing are for another thread.
//
// Updates that a policy holds are shared by reference. Rows created after the mark are not in the
// checkpoint. A range that leaves the shard is copied as a whole before it leaves. A range that
// arrives after the mark is in the part of its former owner.
//
// The ranges use the same memory one after the other (CopyBlocks). A file that outlives
// this object frees its memory.
//
// The destructor ends the copying of ranges that remain, so an abandoned checkpoint costs nothing
// more.
//
// Thread safety: none needed; used on the shard's thread. A File belongs to any one thread.
#ifndef TANDEM_SERVER_SHARD_CHECKPOINT_H_
#define TANDEM_SERVER_SHARD_CHECKPOINT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/checkpoint/range_copy.h"
#include "server/shard_core.h"

namespace tandem::server {

class ShardCheckpoint {
 public:
  // A range of the checkpoint: its name (RangeFileName), and the contents before RangeCopy::Encode.
  struct File {
    std::string name;
    std::unique_ptr<RangeCopy> copy;
  };

  // `shard` outlives this object.
  explicit ShardCheckpoint(ShardCore* shard)
      : shard_(*shard), blocks_(std::make_shared<CopyBlocks>(shard->budget())) {}
  ~ShardCheckpoint();
  ShardCheckpoint(const ShardCheckpoint&) = delete;
  ShardCheckpoint& operator=(const ShardCheckpoint&) = delete;

  // False while a range moves to or from the shard: then no part would contain the range.
  bool MayMark() const { return shard_.ranges().Settled(); }
  // Requires: MayMark(), and no other checkpoint of the shard is in progress.
  void Mark();
  bool marked() const { return marked_; }

  // Copies about so many bytes of rows. Returns a file when a range is copied. Requires: marked().
  std::optional<File> Step(size_t bytes);
  bool done() const { return marked_ && ranges_.empty() && files_.empty(); }

  // Call it before the shard installs `view`: copies the ranges that will leave.
  void BeforeView(const RangeMap& view);

  // Memory of rows that were copied because they were about to change, and that no file contains
  // yet.
  size_t set_aside_bytes() const;
  // For tests: the bytes of all copied rows and candidates that no returned file contains.
  size_t copied_bytes() const;

 private:
  struct Marked {
    uint32_t range = 0;
    std::unique_ptr<RangeCopy> copy;
  };
  RowTable& StoreOf(const Marked& marked);
  bool CopyRange(size_t bytes);

  ShardCore& shard_;
  bool marked_ = false;
  const std::shared_ptr<CopyBlocks> blocks_;
  std::vector<Marked> ranges_;  // ranges that remain, the next one last
  uint64_t cursor_ = 0;         // of the next one
  std::deque<File> files_;      // complete, not yet returned
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SHARD_CHECKPOINT_H_
