#include "scheduler/job_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "job/job_budget.h"
#include "scheduler/failure/failure_judge.h"
#include "server/checkpoint/manifest.h"

namespace tandem::scheduler {

JobCheckpoints::JobCheckpoints(const Checkpoint& checkpoint, std::string folder, int64_t saved,
                               Membership* members, Commands* commands, Barriers* barriers)
    : folder_(std::move(folder)),
      members_(*members),
      commands_(*commands),
      barriers_(*barriers),
      schedule_(checkpoint),
      room_(absl::Seconds(checkpoint.wait_for_room_seconds())),
      checkpointed_step_(saved) {
  schedule_.OnStep(std::max<int64_t>(saved, 0));
}

void JobCheckpoints::OnAsked(const Node& node, int64_t checkpoints, SchedulerEffects* effects) {
  const bool more = schedule_.OnAsked(checkpoints);
  if (!more || !folder_.empty()) return;
  effects->Warn(
      absl::StrCat(node.Name(), ": its program asks for a checkpoint, but the job writes none"));
}

bool JobCheckpoints::Due(absl::Time now) const {
  const bool may = !folder_.empty() && queue_.empty() && !queue_.closed() && !queue_.paused() &&
                   !ending() && !unable_;
  return may && schedule_.Due(now);
}

UserAnswer JobCheckpoints::Request(absl::Time now, const std::string& folder,
                                   SchedulerEffects* effects) {
  UserAnswer answer;
  const auto refuse = [&answer](const char* why) {
    answer.set_code(static_cast<int32_t>(absl::StatusCode::kFailedPrecondition));
    answer.set_text(why);
    return answer;
  };
  if (folder.empty()) {
    return refuse(
        "this run writes no checkpoints, because it only evaluates, or was started with "
        "--no-checkpoint or without --out");
  }
  const CheckpointQueue::Answer added = queue_.Add(folder);
  answer.set_checkpoints(ended_ + static_cast<int64_t>(queue_.size()));
  switch (added) {
    case CheckpointQueue::Answer::kStart:
      Ask(now, effects);
      answer.set_text(asks_later_ ? "the checkpoint begins when a worker has been replaced"
                                  : "the workers are asked for a checkpoint");
      break;
    case CheckpointQueue::Answer::kQueued:
      answer.set_text(absl::StrCat("a checkpoint is in progress; the one to ", folder, " follows"));
      break;
    case CheckpointQueue::Answer::kMerged:
      answer.set_text(
          absl::StrCat("the next checkpoint to ", folder, " answers this request, too"));
      break;
    case CheckpointQueue::Answer::kClosed:
      return refuse("the job is at its end");
  }
  return answer;
}

void JobCheckpoints::Ask(absl::Time now, SchedulerEffects* effects) {
  if (replacing_) {
    asks_later_ = true;
    return effects->Log("the next checkpoint waits until a worker has been replaced");
  }
  schedule_.Begin();
  Command checkpoint = commands_.New(Command::CHECKPOINT, queue_.current());
  hold_ = ending();
  checkpoint.set_hold(hold_);
  request_ = checkpoint.id();
  failure_.clear();
  step_ = -1;
  marked_ = false;
  excused_.clear();
  commands_.Await(now, checkpoint, /*servers=*/0, /*shards=*/0, members_.workers());
  Control control;
  *control.mutable_command() = checkpoint;
  for (int rank = 0; rank < members_.workers(); ++rank) {
    effects->SendTo(*members_.worker(rank), control);
  }
  effects->Log(absl::StrCat("asked the workers for a checkpoint to ", queue_.current()));
}

Command JobCheckpoints::Mark(uint64_t run, int64_t attempt, Barrier* barrier) {
  Command mark = commands_.New(Command::MARK);
  // A further try has a folder of its own, and counts as the later request.
  const bool further = room_.waiting();
  const bool requested = barrier->action == BarrierEnter::MARK;
  const uint64_t request = (further ? mark.id() : requested ? request_ : 0) & 0xffffffff;
  barrier->folder =
      server::CheckpointFolder(barrier->path, run, barrier->max_value, request, attempt);
  // The final checkpoint may be at the same step.
  if (barrier->action == BarrierEnter::PAUSE_CHECKPOINTS) barrier->folder += server::kBestSuffix;
  mark.set_path(barrier->folder);
  mark.set_may_fail(requested && !hold_);
  return mark;
}

// If a worker could not write its part, the servers stop writing before rank 0 removes the folder.
Command JobCheckpoints::Write(const Barrier& barrier) {
  Command checkpoint = commands_.New(Command::CHECKPOINT, barrier.path);
  checkpoint.set_abandon(!barrier.failure.empty());
  return checkpoint;
}

bool JobCheckpoints::NoteFailure(const Node& node, const CommandDone& done) {
  const auto it = commands_.pending().find(done.id());
  if (it == commands_.pending().end() || it->second.command.kind() != Command::CHECKPOINT)
    return false;
  const std::string what = absl::StrCat(node.Name(), ": ", Clip(done.message()));
  if (it->second.barrier.empty()) {  // a worker's answer to the request
    if (failure_.empty()) failure_ = what;
    unable_ = unable_ || CodeOf(done.code()) == absl::StatusCode::kUnimplemented;
    return true;
  }
  if (it->second.command.abandon()) return true;  // the barrier has the error already
  Barrier& barrier = barriers_.open().at(it->second.barrier);
  if (!barrier.may_fail && !done.no_room()) return false;
  barrier.AddFailure(what, done.no_room());
  return true;
}

void JobCheckpoints::OnBarrier(const Barrier& barrier) {
  step_ = barrier.max_value;
  failure_ = barrier.failure;
}

Failure JobCheckpoints::NoRoom(const Barrier& barrier) const {
  return FailureOf(
      "scheduler",
      absl::StrCat("no room for a checkpoint that the job depends on: ", barrier.failure,
                   checkpointed_step_ < 0
                       ? "; there is no checkpoint"
                       : absl::StrCat("; that of step ", checkpointed_step_, " is kept"),
                   "; hint: free space, or raise checkpoint.wait_for_room_seconds"),
      absl::StatusCode::kResourceExhausted);
}

bool JobCheckpoints::Resume(absl::Time now, SchedulerEffects* effects) {
  checkpointed_step_ = step_;
  checkpointed_at_ = now;
  effects->Notify(SchedulerNotice::Kind::kCheckpointed, "", "")->step = checkpointed_step_;
  schedule_.Done(now, schedule_.step());
  return queue_.Resume();
}

void JobCheckpoints::Finish(absl::Time now, SchedulerEffects* effects) {
  // step_ < 0: no CHECKPOINT barrier was released for this request, so the servers have written
  // nothing.
  if (failure_.empty() && step_ < 0) failure_ = "the workers wrote no checkpoint";
  ++ended_;
  last_failure_ = failure_;
  if (failure_.empty()) {
    checkpointed_step_ = step_;
    checkpointed_at_ = now;
    effects->Log(absl::StrCat("checkpoint written to ", queue_.current()));
    effects->Notify(SchedulerNotice::Kind::kCheckpointed, "", "")->step = checkpointed_step_;
  } else {
    effects->Warn(absl::StrCat(
        "the checkpoint", step_ < 0 ? "" : absl::StrCat(" at step ", step_), " failed: ", failure_,
        checkpointed_step_ < 0 ? "; there is none yet"
                               : absl::StrCat("; that of step ", checkpointed_step_, " is kept"),
        ending() ? "" : ", and training continues",
        unable_ && !ending() ? " without scheduled checkpoints" : ""));
  }
  marked_ = false;
  excused_.clear();
  schedule_.Done(now, schedule_.step());
  queue_.Finish();
}

std::string JobCheckpoints::WithWaysOut(const std::string& reason) const {
  std::string out = reason;
  const bool resumable = !folder_.empty() && checkpointed_step_ >= 0;
  if (folder_.empty()) {
    absl::StrAppend(&out, "; the job writes no checkpoint");
  } else if (resumable) {
    absl::StrAppend(&out, "; the checkpoint of step ", checkpointed_step_, " is in ", folder_);
  } else {
    absl::StrAppend(&out, "; there is no checkpoint");
  }
  if (ending() && !last_failure_.empty()) {
    absl::StrAppend(&out, " (the last one failed: ", last_failure_, ")");
  }
  if (absl::StrContains(reason, "hint: ")) return out;
  return absl::StrCat(out, "; hint: ", resumable ? "--resume with " : "", job::kWaysToFit);
}

}  // namespace tandem::scheduler
