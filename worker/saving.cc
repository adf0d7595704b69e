#include "worker/saving.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/manifest.h"

namespace tandem::worker {

// ---- one save ---------------------------------------------------------------------------------

void Saving::Begin(const std::string& name, const std::string& path, int64_t step,
                   uint64_t request) {
  name_ = name;
  directory_ = server::SaveFolder(path, context_.run, step, request);
  step_ = step;
  dense_ = DenseSave();
  dense_.id = id_;
  stage_ = Stage::kMeet;
}

bool Saving::Advance(absl::Time now, TrainerEffects* effects) {
  while (Step(now, effects)) {
  }
  if (stage_ != Stage::kDone) return false;
  stage_ = Stage::kIdle;
  bytes_ = {};
  dense_ = DenseSave();
  return true;
}

bool Saving::Step(absl::Time now, TrainerEffects* effects) {
  if (task_running_) return false;
  const bool writer = context_.rank == 0;
  switch (stage_) {
    case Stage::kMeet:  // the dense part is read once all pushes are in
      if (!context_.barriers.Pass(now, absl::StrCat("ready to ", name_), step_, when_ready_)) {
        return false;
      }
      return Enter(Stage::kCollect);
    case Stage::kCollect:
      if (!synchroniser_.CollectForSave(now, &dense_, effects)) return false;
      return Enter(writer ? Stage::kWrite : Stage::kMeetServers);
    case Stage::kWrite: {
      absl::StatusOr<std::string> bytes = synchroniser_.FileFor(dense_);
      if (!bytes.ok()) {
        context_.Fail(bytes.status());
        return false;
      }
      bytes_ = *std::move(bytes);
      Run(WriteDenseTask{id_, &directory_, &bytes_}, effects);
      return Enter(Stage::kMeetServers);
    }
    case Stage::kMeetServers:
      if (!context_.barriers.Pass(now, name_, step_, BarrierEnter::SAVE, directory_)) return false;
      if (writer) Run(CommitSaveTask{id_, &directory_, step_}, effects);
      return Enter(Stage::kCommit);
    case Stage::kCommit:
      return Enter(Stage::kDone);
    case Stage::kIdle:
    case Stage::kDone:
      return false;
  }
  return false;
}

void Saving::Run(TrainerTask task, TrainerEffects* effects) {
  task_running_ = true;
  effects->tasks.push_back(std::move(task));
}

bool Saving::OnCompletion(uint64_t request) {
  if (dense_.read != request || request == 0) return false;
  dense_.read = 0;
  dense_.collected = true;
  return true;
}

// ---- one that was asked for -------------------------------------------------------------------

void RequestedSave::OnCommand(const Command& command, int64_t first_free) {
  if (wanted_) return;  // this one, sent again: answered when it is written
  if (command.id() <= command_) return context_.SendDone(EndpointId::Scheduler(), command.id());
  wanted_ = true;
  command_ = command.id();
  path_ = command.path();
  first_free_ = first_free;
  step_ = -1;
}

bool RequestedSave::Advance(absl::Time now, const Rest& rest, TrainerEffects* effects) {
  if (!wanted_) return false;
  if (step_ < 0) {
    const std::string plan = absl::StrCat("plan ", command_);
    if (!context_.barriers.Pass(now, plan, first_free_)) return false;
    step_ = context_.barriers.MaxValue(plan);
    return true;
  }
  if (!saving_.holds()) {
    if (!rest.out_of_steps && context_.step < step_) return false;
    if (rest.synchronising || !context_.pushes.empty()) return false;
    saving_.Begin(absl::StrCat("save ", command_), path_, step_, command_ & 0xffffffff);
  }
  if (!saving_.Advance(now, effects)) return false;
  wanted_ = false;
  context_.SendDone(EndpointId::Scheduler(), command_);
  return true;
}

}  // namespace tandem::worker
