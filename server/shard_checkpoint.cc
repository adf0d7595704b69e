#include "server/shard_checkpoint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::server {
namespace {

constexpr size_t kManyBytes = size_t{64} << 20;  // a slice of a range for which nothing may wait

}  // namespace

ShardCheckpoint::~ShardCheckpoint() {
  for (const Marked& marked : ranges_) StoreOf(marked).set_copies(nullptr);
  blocks_->Close();
}

RowTable& ShardCheckpoint::StoreOf(const Marked& marked) {
  return shard_.ranges().Find(marked.range)->store();
}

void ShardCheckpoint::Mark() {
  TANDEM_CHECK(!marked_);
  marked_ = true;
  for (Range* const range : shard_.ranges().Owned()) {
    if (!shard_.ranges().IsFirstCopy(range->id())) continue;
    Marked& marked = ranges_.emplace_back();
    marked.range = range->id();
    marked.copy = std::make_unique<RangeCopy>(range->Copy(/*for_move=*/false, blocks_));
    range->store().set_copies(&marked.copy->rows);
  }
  std::reverse(ranges_.begin(), ranges_.end());
}

std::optional<ShardCheckpoint::File> ShardCheckpoint::Step(size_t bytes) {
  TANDEM_CHECK(marked_);
  if (files_.empty() && !ranges_.empty()) CopyRange(bytes);
  if (files_.empty()) return std::nullopt;
  File file = std::move(files_.front());
  files_.pop_front();
  return file;
}

// Copies a slice of the next range. True if the range is copied.
bool ShardCheckpoint::CopyRange(size_t bytes) {
  Marked& marked = ranges_.back();
  RowTable& store = StoreOf(marked);
  RowCopies& rows = marked.copy->rows;
  cursor_ = store.CopyRows(cursor_, 1 + bytes / (rows.floats() * sizeof(float)), &rows);
  if (cursor_ != 0) return false;
  store.set_copies(nullptr);
  files_.push_back({RangeFileName(marked.copy->head), std::move(marked.copy)});
  ranges_.pop_back();
  return true;
}

// A range whose copying was interrupted begins again. Its rows that are copied already are skipped.
void ShardCheckpoint::BeforeView(const RangeMap& view) {
  const auto stays = [&](const Marked& marked) {
    return view.range(marked.range).owner == shard_.ranges().map()->range(marked.range).owner;
  };
  const auto leaving = std::stable_partition(ranges_.begin(), ranges_.end(), stays);
  for (auto left = ranges_.end() - leaving; left > 0; --left) {
    cursor_ = 0;
    while (!CopyRange(kManyBytes)) {
    }
  }
}

size_t ShardCheckpoint::set_aside_bytes() const {
  size_t bytes = 0;
  for (const Marked& marked : ranges_) bytes += marked.copy->rows.set_aside_bytes();
  return bytes;
}

size_t ShardCheckpoint::copied_bytes() const {
  size_t bytes = 0;
  const auto add = [&bytes](const RowCopies& copies) {
    for (const CopyList* const list : {&copies.rows(), &copies.candidates()}) {
      bytes += list->size() * (list->floats() * sizeof(float) + sizeof(uint64_t));
    }
  };
  for (const Marked& marked : ranges_) add(marked.copy->rows);
  for (const File& file : files_) add(file.copy->rows);
  return bytes;
}

}  // namespace tandem::server
