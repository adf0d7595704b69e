#include "worker/checkpoint_writer.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "job/user_module.h"
#include "server/manifest.h"

namespace tandem::worker {

// ---- one checkpoint ---------------------------------------------------------------------------

void CheckpointWriter::Begin(const std::string& name, const std::string& path, int64_t step,
                             uint64_t request, const TrainPosition& position) {
  name_ = name;
  directory_ = server::CheckpointFolder(path, context_.run, step, request, context_.attempt);
  if (id_ == CheckpointId::kBest)
    // The final checkpoint may be at the same step.
    directory_ += server::kBestSuffix;
  step_ = step;
  position_ = position;
  failure_.clear();
  dense_ = DenseCheckpoint();
  dense_.id = id_;
  stage_ = Stage::kFirstBarrier;
}

bool CheckpointWriter::Advance(absl::Time now, TrainerEffects* effects) {
  while (Step(now, effects)) {
  }
  if (stage_ != Stage::kDone) return false;
  stage_ = Stage::kIdle;
  bytes_ = {};
  record_ = {};
  dense_ = DenseCheckpoint();
  return true;
}

bool CheckpointWriter::Step(absl::Time now, TrainerEffects* effects) {
  if (tasks_ > 0) return false;
  // The first barrier makes sure that no worker has a push in flight, so that the dense part and
  // the ranges are of one moment. The second barrier comes after the workers' files are written, so
  // that the scheduler knows whether they all succeeded, and includes the servers' files. The
  // manifest comes last: a folder without a manifest is not a checkpoint, so a crash in between
  // leaves no damaged one.
  switch (stage_) {
    // The dense part is read after all pushes are applied.
    case Stage::kFirstBarrier:
      if (!context_.barriers.Pass(now, absl::StrCat("ready to ", name_), step_, when_ready_)) {
        return false;
      }
      return Enter(Stage::kCollect);
    case Stage::kCollect:
      if (!synchroniser_.CollectForCheckpoint(now, &dense_, effects)) return false;
      return Enter(Stage::kWrite);
    case Stage::kWrite:
      return Write(effects);
    case Stage::kSecondBarrier:
      return PassSecondBarrier(now, effects);
    case Stage::kCommit:
      return Enter(Stage::kDone);
    case Stage::kIdle:
    case Stage::kDone:
      return false;
  }
  return false;
}

bool CheckpointWriter::Write(TrainerEffects* effects) {
  if (context_.rank == 0) {
    absl::StatusOr<std::string> bytes = synchroniser_.FileFor(dense_);
    if (!bytes.ok()) {
      context_.Fail(bytes.status());
      return false;
    }
    bytes_ = *std::move(bytes);
    Run(WriteDenseTask{id_, &directory_, &bytes_}, effects);
  }
  const job::ResolvedJob& plan = context_.plan;
  if (plan.job.dense().codec().kind() > Codec::NONE || job::HasOwnModule(plan.job.model()) ||
      synchroniser_.HasOwnState()) {
    Run(WriteWorkerTask{id_, &directory_, step_, position_.epoch()}, effects);
  }
  return Enter(Stage::kSecondBarrier);
}

bool CheckpointWriter::PassSecondBarrier(absl::Time now, TrainerEffects* effects) {
  // The scheduler has the servers write their ranges between the last entry and the release (action
  // CHECKPOINT). A failure of any worker or server comes back in the release, so all workers agree
  // on whether there is a checkpoint.
  BarrierEnter entry;
  entry.set_name(name_);
  entry.set_value(step_);
  entry.set_action(BarrierEnter::CHECKPOINT);
  entry.set_path(directory_);
  entry.set_may_fail(may_fail());
  entry.set_failure(failure_);
  if (!context_.barriers.Pass(now, std::move(entry))) return false;
  const BarrierRelease& release = context_.barriers.ReleaseOf(name_);
  failure_ = release.failure();
  record_ = release.record();
  if (context_.rank == 0 && failure_.empty()) {
    Run(CommitCheckpointTask{id_, &directory_, step_, &record_}, effects);
  } else if (context_.rank == 0) {
    Run(AbandonCheckpointTask{id_, &directory_}, effects);
  }
  return Enter(Stage::kCommit);
}

void CheckpointWriter::Run(TrainerTask task, TrainerEffects* effects) {
  ++tasks_;
  effects->tasks.push_back(std::move(task));
}

void CheckpointWriter::OnTaskDone(const absl::Status& status) {
  --tasks_;
  if (status.ok()) return;
  if (!may_fail()) return context_.Fail(status);
  if (failure_.empty()) failure_ = std::string(status.message());
}

bool CheckpointWriter::OnCompletion(uint64_t request) {
  if (dense_.read != request || request == 0) return false;
  dense_.read = 0;
  dense_.collected = true;
  return true;
}

// ---- the requested checkpoint -----------------------------------------------------------------

void RequestedCheckpoint::OnCommand(const Command& command, int64_t first_free) {
  // The same command, sent again; the answer follows when the checkpoint is written.
  if (wanted_) return;
  if (command.id() <= command_) {
    return context_.SendDone(EndpointId::Scheduler(), command.id(),
                             command.id() == command_ ? result_ : absl::OkStatus());
  }
  wanted_ = true;
  hold_ = command.hold();
  command_ = command.id();
  path_ = command.path();
  first_free_ = first_free;
  step_ = -1;
}

bool RequestedCheckpoint::Advance(absl::Time now, const TrainingState& state,
                                  TrainerEffects* effects) {
  if (!wanted_) return false;
  // Phase one: agree on the step. The barrier gives the largest `first_free` of all workers, so no
  // worker has to undo a step. Phase two: finish the steps below it, then write the checkpoint.
  if (step_ < 0) {
    const std::string plan = absl::StrCat("plan ", command_);
    if (!context_.barriers.Pass(now, plan, first_free_)) return false;
    step_ = context_.barriers.MaxValue(plan);
    return true;
  }
  if (!checkpoint_writer_.holds()) {
    if (!state.out_of_steps && context_.step < step_) return false;
    if (state.synchronising || !context_.pushes.empty()) return false;
    checkpoint_writer_.Begin(absl::StrCat("checkpoint ", command_), path_, step_,
                             command_ & 0xffffffff, state.position);
  }
  if (!checkpoint_writer_.Advance(now, effects)) return false;
  wanted_ = false;
  stays_ = hold_;
  result_ = checkpoint_writer_.failure().empty()
                ? absl::OkStatus()
                : absl::UnavailableError(checkpoint_writer_.failure());
  context_.SendDone(EndpointId::Scheduler(), command_, result_);
  return true;
}

}  // namespace tandem::worker
