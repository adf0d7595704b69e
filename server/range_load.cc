// Range: loading a checkpoint of another run (LoadCheckpoint), and resuming from one of the same
// run (ResumeCheckpoint).
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "server/limited_rows.h"
#include "server/range.h"

namespace tandem::server {
namespace {

// The part of an update whose keys are in [begin, end).
HeldUpdate CutUpdate(const HeldUpdate& update, const RangeStore& store, uint64_t begin,
                     uint64_t end, BufferSource& source) {
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

// Adds a part of an update to the step. If an earlier file had another part of the same update,
// joins the two, so that the update counts once. Their keys differ. Updates of another run are not
// joined: they do not count, and several of one worker may have the same step.
void AddPart(HeldUpdate part, bool in_batches, BufferSource& source, HeldStep* step) {
  const auto other =
      std::find_if(step->updates.begin(), step->updates.end(), [&part](const HeldUpdate& update) {
        return update.rank == part.rank && update.step == part.step;
      });
  if (other != step->updates.end() && part.version_read != kReadByAnotherRun) {
    other->version_read = std::min(other->version_read, part.version_read);
    other->keys = Joined(other->keys, part.keys, source);
    other->values = Joined(other->values, part.values, source);
  } else if (in_batches) {
    step->updates.push_back(std::move(part));
  } else {
    step->Insert(std::move(part));
  }
}

// Adds the parts of saved updates that `cut` returns to the steps of files read earlier, or to new
// steps if this is the `first` file.
template <typename Cut>
void AddSteps(const HeldQueue& saved, const Cut& cut, bool first, bool in_batches,
              BufferSource& source, HeldQueue* steps) {
  for (size_t i = 0; i < saved.size(); ++i) {
    HeldStep& step = first ? steps->Add() : (*steps)[i];
    step.step = saved[i].step;
    step.samples = saved[i].samples;
    step.skipped = saved[i].skipped;
    step.contributions = saved[i].contributions;
    for (const HeldUpdate& update : saved[i].updates) {
      HeldUpdate part = cut(update);
      if (!part.keys.empty()) AddPart(std::move(part), in_batches, source, &step);
    }
  }
}

// As CheckpointQueueFixture. `batches`: how many of the last entries of `delayed` are not steps but
// an open batch (0 or 1).
absl::Status CheckpointSteps(const RangeImage& image, BufferSource& source, HeldQueue* delayed,
                             size_t* batches) {
  *batches = 0;
  if (image.held.size() < kHeldHeadBytes) return absl::OkStatus();  // nothing was held
  const absl::string_view held = image.held;
  uint64_t bytes = 0;
  std::memcpy(&bytes, held.data() + kHeldHeadBytes - sizeof bytes, sizeof bytes);
  if (bytes > held.size() - kHeldHeadBytes) {
    return absl::DataLossError(
        absl::StrCat("held updates of ", bytes, " bytes in a part of ", held.size(), " bytes"));
  }
  HeldQueue open;
  bool in_batches = false;
  TANDEM_RETURN_IF_ERROR(DecodeHeld(held.substr(kHeldHeadBytes, bytes), image.dim, source, &open,
                                    delayed, &in_batches));
  if (in_batches) {
    *batches = open.size();
    while (!open.empty()) delayed->Take(&open);
  }
  // At the end of an epoch there may be open groups without contributions. An open group with
  // contributions means that the checkpoint was not taken between steps.
  for (size_t i = 0; i < open.size(); ++i) {
    if (open[i].samples == 0 && !open[i].skipped && open[i].updates.empty()) continue;
    return absl::DataLossError(absl::StrCat("contains ", open.size(),
                                            " unfinished steps, so the checkpoint was not taken at "
                                            "a step boundary; hint: use another checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckpointQueueFixture(const RangeImage& image, BufferSource& source,
                                    HeldQueue* delayed) {
  size_t batches = 0;
  return CheckpointSteps(image, source, delayed, &batches);
}

absl::Status Range::LoadCheckpoint(const RangeImage& image, BufferSource& source) {
  TANDEM_RETURN_IF_ERROR(LoadRows(image, this));
  steps_.Continue(image);
  HeldQueue saved;
  size_t batches = 0;
  TANDEM_RETURN_IF_ERROR(CheckpointSteps(image, source, &saved, &batches));
  const size_t steps = saved.size() - batches;
  const bool first = !loaded_steps_.has_value();
  if (!first && steps != *loaded_steps_) {
    return absl::DataLossError(absl::StrCat("has ", steps,
                                            " delayed steps, another file of its table ",
                                            *loaded_steps_, ": is one of another checkpoint?"));
  }
  loaded_steps_ = steps;
  // Dense rows come later, from a worker. So their delayed steps cannot be applied now, and a job
  // with a shorter delay, or without batches, could not apply them later.
  const auto delay = static_cast<size_t>(properties_.delay);
  if (table_->plan->dense && steps > delay) {
    return absl::FailedPreconditionError(
        absl::StrCat("has ", steps, " delayed steps of the dense parameters, this job's delay is ",
                     delay, "; hint: use policy FIXED_DELAY and a delay of at least ", steps));
  }
  if (table_->plan->dense && batches > 0 && properties_.batch == 0) {
    return absl::FailedPreconditionError(
        "has an open batch of updates of the dense parameters; hint: use policy K_BATCH_ASYNC or "
        "GBA");
  }
  for (size_t i = 0; i < saved.size(); ++i) {
    // The files of a table have the same delayed steps, so each file adds to the steps of the
    // first. The open batch of each file stays a batch of its own: its mean is over other samples.
    HeldStep& step = first || i >= steps ? delayed_.Add() : delayed_[i];
    step.step = static_cast<int64_t>(i) - static_cast<int64_t>(saved.size());  // before step 0
    step.samples = saved[i].samples;
    for (const HeldUpdate& update : saved[i].updates) {
      HeldUpdate cut = CutUpdate(update, store_, begin_, end_, source);
      if (cut.keys.empty()) continue;
      cut.step = step.step;
      cut.version_read = kReadByAnotherRun;
      cut.read_number = -1;
      held_bytes_ += cut.Bytes();
      if (i < steps) {
        step.Insert(std::move(cut));
      } else {
        step.updates.push_back(std::move(cut));
      }
    }
  }
  Report();
  return absl::OkStatus();
}

void Range::FinishLoad() {
  // Dense rows have not come yet, so their open batch stays in the queue. The first batch that
  // closes finds it there and applies it first.
  if (table_->plan->dense) return;
  while (static_cast<int64_t>(delayed_.size()) > properties_.delay) {
    ApplyFold(delayed_.front());
    delayed_.DropFront();
  }
  Report();
}

// ---- resuming the same run --------------------------------------------------------------------

absl::Status Range::ResumeCheckpoint(const RangeImage& image, BufferSource& source) {
  if (store_.limits() != nullptr) store_.limits()->StartAt(image.progress.version);
  TANDEM_RETURN_IF_ERROR(LoadRows(image, this));
  policies::RangeProgress progress = image.progress;
  // The first push of each worker will set its new incarnation (Admit).
  for (policies::WorkerProgress& worker : progress.workers) worker.incarnation = 0;
  if (resumed_ && progress != progress_ && properties_.batch > 0) {
    return absl::FailedPreconditionError(
        "has an open batch of other updates than another file of its table; hint: resume with as "
        "many servers, shards_per_server and ranges_per_shard as the run had");
  }
  if (resumed_ && progress != progress_) {
    return absl::DataLossError(
        "its workers are at other steps than in another file of its table: is one of another "
        "checkpoint?");
  }
  if (progress.workers.size() != progress_.workers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("has the progress of ", progress.workers.size(),
                                                   " workers, expected ",
                                                   progress_.workers.size()));
  }
  TANDEM_RETURN_IF_ERROR(CheckProgress(progress));
  steps_.Continue(image);
  progress_.version = progress.version;
  progress_.workers = std::move(progress.workers);
  clocks_.Reset();
  TANDEM_RETURN_IF_ERROR(ResumeHeld(image, source));  // also decodes the paces
  resumed_ = true;
  Report();
  return CheckHeld();
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
  last_closed_samples_ = numbers[0];
  HeldQueue open, delayed;
  TANDEM_RETURN_IF_ERROR(
      DecodeHeld(held.substr(0, numbers[1]), image.dim, source, &open, &delayed));
  if (resumed_ && (open.size() != open_.size() || delayed.size() != delayed_.size())) {
    return absl::DataLossError(absl::StrCat("has ", open.size(), " open and ", delayed.size(),
                                            " delayed steps, another file of its table ",
                                            open_.size(), " and ", delayed_.size(),
                                            ": is one of another checkpoint?"));
  }
  const auto cut = [&](const HeldUpdate& update) {
    HeldUpdate part = CutUpdate(update, store_, begin_, end_, source);
    held_bytes_ += part.Bytes();
    return part;
  };
  AddSteps(open, cut, !resumed_, properties_.batch > 0, source, &open_);
  AddSteps(delayed, cut, !resumed_, properties_.batch > 0, source, &delayed_);
  return DecodeMemory(held.substr(numbers[1]), image.begin == begin_ && image.end == end_);
}

}  // namespace tandem::server
