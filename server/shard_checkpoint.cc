#include "server/shard_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/checkpoint_directory.h"

namespace tandem::server {

absl::StatusOr<std::optional<ShardCheckpoint::File>> ShardCheckpoint::Step(size_t rows) {
  if (!MayStep()) return std::nullopt;
  if (!begun_) {
    begun_ = true;
    for (const Range* range : shard_.ranges().Owned()) {
      if (shard_.ranges().IsFirstCopy(range->id())) ranges_.push_back(range->id());
    }
    std::reverse(ranges_.begin(), ranges_.end());
  }
  if (ranges_.empty()) {
    done_ = true;
    return std::nullopt;
  }
  const Range* const range = shard_.ranges().Find(ranges_.back());
  if (range != nullptr && !encoder_.has_value()) BeginRange(*range);
  if (range == nullptr || range->progress() != head_.progress) {
    return absl::FailedPreconditionError(
        absl::StrCat("range ", ranges_.back(), " changed while the checkpoint was written"));
  }
  // Programs go on writing to a KEY_VALUE table. So its range is copied in one slice.
  if (range->table().plan->store) rows = head_.keys.size();
  const auto keys = absl::MakeConstSpan(head_.keys).subspan(copied_, rows);
  weights_.resize(keys.size() * static_cast<size_t>(head_.dim));
  slots_.resize(keys.size() * static_cast<size_t>(head_.slots_per_row));
  CopyRows(range->store(), keys, absl::MakeSpan(weights_), absl::MakeSpan(slots_));
  encoder_->SetRows(copied_, weights_, slots_);
  copied_ += keys.size();
  if (copied_ < head_.keys.size()) return std::nullopt;
  ranges_.pop_back();
  done_ = ranges_.empty();
  File file{RangeFileName(head_), *std::move(encoder_)};
  encoder_.reset();
  return file;
}

// Head() sorts all keys of the range at once, about 10 million a second.
void ShardCheckpoint::BeginRange(const Range& range) {
  head_ = range.Head();
  if (range.table().plan->dense) head_.keys.clear();  // the dense part has the rows
  encoder_.emplace(head_);
  copied_ = 0;
}

}  // namespace tandem::server
