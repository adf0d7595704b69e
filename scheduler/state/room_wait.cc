#include "scheduler/state/room_wait.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::scheduler {
namespace {

constexpr absl::Duration kBetweenLines = absl::Minutes(1);

std::string WholeSeconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Seconds(absl::Ceil(duration, absl::Seconds(1))), " s");
}

}  // namespace

absl::Time RoomWait::Deadline() const {
  return std::min(*since_ + most_, std::max(*since_, stopped_at_) + kAfterSignal);
}

bool RoomWait::TryAgain(absl::Time now, const Barrier& failed) {
  if (!since_.has_value()) {
    since_ = now;
    why_ = failed.failure;
  }
  gave_up_ = now >= Deadline();
  // The last try is at the end of the time.
  next_try_ = std::min(now + kPeriod, Deadline());
  return !gave_up_;
}

bool RoomWait::Holds(absl::Time now, const std::string& name, const Barrier& mark, int64_t bytes,
                     SchedulerEffects* effects) {
  if (!waiting()) return false;
  const int64_t need = bytes + mark.part_bytes;
  missing_bytes_ = mark.free_bytes < 0 ? -1 : std::max<int64_t>(need - mark.free_bytes, 0);
  const bool best = mark.action == BarrierEnter::PAUSE_CHECKPOINTS;
  const std::string what =
      absl::StrCat("no room for the ", best ? "checkpoint of the best model" : "last checkpoint",
                   " in ", mark.path, ": it needs about ", need, " bytes");
  // Rank 0 has removed what it may. If the room is still too small, a try at once would fail.
  if (missing_bytes_ == 0 && !std::exchange(tried_at_once_, true)) {
    effects->Warn(absl::StrCat(what, ", ", mark.free_bytes,
                               " are free now that incomplete and older checkpoints are removed; "
                               "the job tries again at once (",
                               why_, ")"));
    return false;
  }
  if (!std::exchange(said_, true)) {
    next_line_ = now + kBetweenLines;
    effects->Warn(absl::StrCat(
        what,
        mark.free_bytes < 0 ? std::string() : absl::StrCat(", ", mark.free_bytes, " are free, "),
        missing_bytes_ < 0   ? ""
        : missing_bytes_ > 0 ? absl::StrCat(missing_bytes_, " are missing")
                             : std::string("so a quota or the number of files may be the limit"),
        "; the job waits up to ", WholeSeconds(Deadline() - now),
        " and tries again every 5 s; hint: free space there, or tandem stop --now to end without ",
        "this checkpoint (", why_, ")"));
  }
  if (now >= next_try_) return false;
  barrier_ = name;
  return true;
}

std::string RoomWait::TakeDue(absl::Time now, SchedulerEffects* effects) {
  if (!waiting()) return "";
  if (said_ && now >= next_line_) {
    next_line_ = now + kBetweenLines;
    effects->Warn(absl::StrCat(
        "still no room for the checkpoint",
        missing_bytes_ > 0 ? absl::StrCat(": about ", missing_bytes_, " bytes are missing") : "",
        "; waits for ", WholeSeconds(std::max(Deadline() - now, absl::ZeroDuration())), " more"));
  }
  next_try_ = std::min(next_try_, Deadline());  // a signal may have come
  return now >= next_try_ ? std::exchange(barrier_, "") : "";
}

void RoomWait::End(absl::Time now, SchedulerEffects* effects) {
  if (!waiting()) return;
  effects->Warn(absl::StrCat("the checkpoint is written, after ", WholeSeconds(waited(now)),
                             " without room"));
  since_.reset();
  said_ = tried_at_once_ = false;
}

void RoomWait::Forgive(absl::Duration pause) {
  if (since_.has_value()) *since_ += pause;
  next_try_ += pause;
  next_line_ += pause;
}

}  // namespace tandem::scheduler
