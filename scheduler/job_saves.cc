#include "scheduler/job_saves.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/failure_judge.h"

namespace tandem::scheduler {

JobSaves::JobSaves(const Save& save, std::string folder, int64_t saved, Membership* members,
                   Commands* commands, Barriers* barriers)
    : folder_(std::move(folder)),
      members_(*members),
      commands_(*commands),
      barriers_(*barriers),
      schedule_(save),
      saved_step_(saved) {
  schedule_.OnStep(std::max<int64_t>(saved, 0));
}

void JobSaves::OnAsked(const Node& node, int64_t saves, SchedulerEffects* effects) {
  const bool more = schedule_.OnAsked(saves);
  if (!more || !folder_.empty()) return;
  effects->Warn(
      absl::StrCat(node.Name(), ": its program asks for a checkpoint, but the job writes none"));
}

bool JobSaves::Due(absl::Time now) const {
  const bool may = !folder_.empty() && queue_.empty() && !queue_.closed() && !queue_.paused() &&
                   !ending_ && !unable_;
  return may && schedule_.Due(now);
}

void JobSaves::Ask(absl::Time now, SchedulerEffects* effects) {
  schedule_.Begin();
  Command save = commands_.New(Command::SAVE, queue_.current());
  save.set_hold(ending_);
  failure_.clear();
  step_ = -1;
  commands_.Await(now, save, /*servers=*/0, /*shards=*/0, members_.workers());
  Control control;
  *control.mutable_command() = save;
  for (int rank = 0; rank < members_.workers(); ++rank) {
    effects->SendTo(*members_.worker(rank), control);
  }
  effects->Log(absl::StrCat("asked the workers for a checkpoint to ", queue_.current()));
}

bool JobSaves::NoteFailure(const Node& node, const CommandDone& done) {
  const auto it = commands_.pending().find(done.id());
  if (it == commands_.pending().end() || it->second.command.kind() != Command::SAVE) return false;
  const std::string what = absl::StrCat(node.Name(), ": ", Clip(done.message()));
  if (it->second.barrier.empty()) {  // a worker's answer to the request
    if (failure_.empty()) failure_ = what;
    unable_ = unable_ || CodeOf(done.code()) == absl::StatusCode::kUnimplemented;
    return true;
  }
  Barrier& barrier = barriers_.open().at(it->second.barrier);
  if (!barrier.may_fail) return false;
  if (barrier.failure.empty()) barrier.failure = what;
  return true;
}

void JobSaves::OnBarrier(const Barrier& barrier) {
  step_ = barrier.max_value;
  failure_ = barrier.failure;
}

bool JobSaves::Resume(absl::Time now) {
  saved_step_ = step_;
  schedule_.Done(now, schedule_.step());
  return queue_.Resume();
}

void JobSaves::Finish(absl::Time now, SchedulerEffects* effects) {
  // step_ < 0: no SAVE barrier was released for this request, so the servers have written nothing.
  if (failure_.empty() && step_ < 0) failure_ = "the workers wrote no checkpoint";
  if (failure_.empty()) {
    saved_step_ = step_;
    effects->Log(absl::StrCat("checkpoint written to ", queue_.current()));
    effects->Notify(SchedulerNotice::Kind::kSaved, "", "")->step = saved_step_;
  } else {
    effects->Warn(absl::StrCat(
        "the checkpoint", step_ < 0 ? "" : absl::StrCat(" at step ", step_), " failed: ", failure_,
        saved_step_ < 0 ? "; there is none yet"
                        : absl::StrCat("; that of step ", saved_step_, " is kept"),
        ending_ ? "" : ", and training continues",
        unable_ && !ending_ ? " without scheduled checkpoints" : ""));
  }
  schedule_.Done(now, schedule_.step());
  queue_.Finish();
}

}  // namespace tandem::scheduler
