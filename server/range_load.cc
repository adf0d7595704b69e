// Range: loading a checkpoint of another run (LoadCheckpoint), and resuming from one of the same
// run (ResumeCheckpoint).
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "server/range.h"

namespace tandem::server {
namespace {

// The part of an update whose keys are in [begin, end).
HeldUpdate CutUpdate(const HeldUpdate& update, const RowTable& store, uint64_t begin, uint64_t end,
                     BufferSource& source) {
  const absl::Span<const uint64_t> keys = update.keys.As<uint64_t>();
  const size_t row_bytes = static_cast<size_t>(store.dim()) * sizeof(float);
  const auto inside = [&](uint64_t key) {
    return InRange(Position(store.options().salt, key), begin, end);
  };
  size_t rows = 0;
  for (const uint64_t key : keys) rows += inside(key) ? 1 : 0;
  HeldUpdate cut = update;
  cut.keys = cut.values = Buffer();
  if (rows == 0) return cut;
  cut.keys = source.Alloc(rows * sizeof(uint64_t));
  cut.values = source.Alloc(rows * row_bytes);
  size_t row = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!inside(keys[i])) continue;
    cut.keys.MutableAs<uint64_t>()[row] = keys[i];
    std::memcpy(cut.values.mutable_data() + row * row_bytes, update.values.data() + i * row_bytes,
                row_bytes);
    ++row;
  }
  return cut;
}

Buffer Joined(const Buffer& a, const Buffer& b, BufferSource& source) {
  Buffer both = source.Alloc(a.size() + b.size());
  std::memcpy(both.mutable_data(), a.data(), a.size());
  std::memcpy(both.mutable_data() + a.size(), b.data(), b.size());
  return both;
}

}  // namespace

absl::Status Range::LoadCheckpoint(const RangeImage& image, BufferSource& source) {
  TANDEM_RETURN_IF_ERROR(LoadRows(image, this));
  steps_.Continue(image, &store_);
  HeldQueue saved;
  size_t batches = 0;
  TANDEM_RETURN_IF_ERROR(DecodeQueue(image, source, &saved, &batches));
  // Dense rows come later, from a worker. So their delayed steps cannot be applied now, and a job
  // with a shorter delay, or without batches, could not apply them later.
  const size_t steps = saved.size() - batches;
  TANDEM_RETURN_IF_ERROR(order_.CheckLoad(steps));
  const auto delay = static_cast<size_t>(order_.properties().delay);
  if (table_->plan->dense && steps > delay) {
    return absl::FailedPreconditionError(
        absl::StrCat("has ", steps, " delayed steps of the dense parameters, this job's delay is ",
                     delay, "; hint: use policy FIXED_DELAY and a delay of at least ", steps));
  }
  if (table_->plan->dense && batches > 0 && order_.properties().batch == 0) {
    return absl::FailedPreconditionError(
        "has an open batch of updates of the dense parameters; hint: use policy K_BATCH_ASYNC, GBA "
        "or RENNALA");
  }
  TANDEM_RETURN_IF_ERROR(order_.Load(saved, batches, [&](const HeldUpdate& update) {
    HeldUpdate part = CutUpdate(update, store_, begin_, end_, source);
    held_bytes_ += part.Bytes();
    return part;
  }));
  Report();
  return absl::OkStatus();
}

void Range::FinishLoad() {
  // Dense rows have not come yet, so their open batch stays in the queue. The first batch that
  // closes finds it there and applies it first.
  if (table_->plan->dense) return;
  order_.FoldDue(this);
  Report();
}

// ---- resuming the same run --------------------------------------------------------------------

absl::Status Range::ResumeCheckpoint(const RangeImage& image, BufferSource& source) {
  store_.StartAt(std::max(image.progress.version, progress().version));
  TANDEM_RETURN_IF_ERROR(LoadRows(image, this));
  TANDEM_RETURN_IF_ERROR(Named(order_.ResumeProgress(image.progress)));
  steps_.Continue(image, &store_);
  TANDEM_RETURN_IF_ERROR(ResumeHeld(image, source));  // also decodes the paces
  Report();
  return Named(order_.FinishResume());
}

absl::Status Range::ResumeHeld(const RangeImage& image, BufferSource& source) {
  uint64_t numbers[2] = {};
  if (image.held.size() < sizeof numbers) return absl::OkStatus();  // nothing was held
  image.held.copy(reinterpret_cast<char*>(numbers), sizeof numbers);
  const absl::string_view held = absl::string_view(image.held).substr(sizeof numbers);
  if (numbers[1] > held.size()) {
    return absl::DataLossError(absl::StrCat("held updates of ", numbers[1], " bytes, but only ",
                                            held.size(), " bytes follow"));
  }
  HeldQueue open, delayed;
  TANDEM_RETURN_IF_ERROR(
      DecodeHeld(held.substr(0, numbers[1]), image.dim, source, &open, &delayed));
  const auto cut = [&](const HeldUpdate& update) {
    HeldUpdate part = CutUpdate(update, store_, begin_, end_, source);
    held_bytes_ += part.Bytes();
    return part;
  };
  const auto join = [&source](const HeldUpdate& part, HeldUpdate* whole) {  // their keys differ
    if (part.rows_before_sum >= 0 || whole->rows_before_sum >= 0) {
      whole->rows_before_sum = static_cast<int64_t>(whole->rows() + part.rows());
    }
    whole->keys = Joined(whole->keys, part.keys, source);
    whole->values = Joined(whole->values, part.values, source);
  };
  TANDEM_RETURN_IF_ERROR(order_.ResumeHeld(open, delayed, numbers[0], cut, join));
  return DecodeMemory(held.substr(numbers[1]), image.begin == begin_ && image.end == end_);
}

}  // namespace tandem::server
