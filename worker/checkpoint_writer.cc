#include "worker/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/no_room.h"
#include "job/user_module.h"

namespace tandem::worker {
namespace {

// Whether a step that is computed changes something on this worker that belongs to the checkpoint.
bool KeepsState(const job::ResolvedJob& plan, const DenseSynchroniser& synchroniser) {
  return plan.job.dense().codec().kind() > Codec::NONE || job::HasOwnModule(plan.job.model()) ||
         synchroniser.HasOwnState();
}

// Whether each worker may mark at a step of its own. False if steps or dense sums are common to the
// workers. False also if a policy collects the updates of a step, because the checkpoint would have
// only some updates of such a step.
bool CutsAtOwnSteps(const job::ResolvedJob& plan, const DenseSynchroniser& synchroniser) {
  const bool collects =
      std::any_of(plan.groups.begin(), plan.groups.end(), [](const job::GroupPlan& group) {
        return group.properties.holds && group.properties.batch == 0;
      });
  return !plan.lockstep && !synchroniser.EndsEpochs() && !collects;
}

}  // namespace

// ---- one checkpoint ---------------------------------------------------------------------------

void CheckpointWriter::Begin(const std::string& name, const std::string& path, int64_t step,
                             const TrainPosition& position, bool ends) {
  name_ = name;
  path_ = path;
  step_ = step;
  position_ = position;
  depends_ = !may_fail() || ends;
  waits_ = depends_ || synchroniser_.EndsEpochs();
  failure_.clear();
  no_room_ = commits_ = again_ = false;
  tries_ = 0;
  free_bytes_ = -1;
  dense_ = DenseCheckpoint();
  dense_.id = id_;
  stage_ = Stage::kMark;
}

bool CheckpointWriter::Advance(absl::Time now, TrainerEffects* effects) {
  while (Step(now, effects)) {
  }
  if (stage_ != Stage::kDone) return false;
  stage_ = Stage::kIdle;
  bytes_ = state_ = program_ = record_ = {};
  dense_ = DenseCheckpoint();
  return true;
}

bool CheckpointWriter::Step(absl::Time now, TrainerEffects* effects) {
  if (tasks_ > 0) return false;
  // The manifest comes last: a folder without a manifest is not a checkpoint, so a crash in between
  // leaves no damaged one.
  switch (stage_) {
    case Stage::kMark:
      return PassMark(now);
    case Stage::kCollect:
      return synchroniser_.CollectForCheckpoint(&dense_, effects) && Enter(Stage::kCopy);
    case Stage::kCopy:
      return Copy(effects);
    case Stage::kWrite:
      return Write(effects);
    case Stage::kSecondBarrier:
      return PassSecondBarrier(now, effects);
    case Stage::kCommit:
      return AfterCommit();
    case Stage::kThirdBarrier:
      return PassThirdBarrier(now);
    case Stage::kIdle:
    case Stage::kDone:
      return false;
  }
  return false;
}

// The names of barriers are used once.
std::string CheckpointWriter::NameOfTry() const {
  return tries_ == 0 ? name_ : absl::StrCat(name_, ", try ", tries_ + 1);
}

bool CheckpointWriter::PassMark(absl::Time now) {
  BarrierEnter entry;
  entry.set_name(absl::StrCat("mark ", NameOfTry()));
  entry.set_value(step_);
  entry.set_action(id_ == CheckpointId::kFinal  ? BarrierEnter::LAST_CHECKPOINT
                   : id_ == CheckpointId::kBest ? BarrierEnter::PAUSE_CHECKPOINTS
                                                : BarrierEnter::MARK);
  entry.set_path(path_);
  if (tries_ > 0) {
    entry.set_part_bytes(static_cast<int64_t>(bytes_.size() + state_.size() + program_.size()));
    entry.set_free_bytes(free_bytes_);
  }
  const std::string mark = entry.name();
  if (!context_.barriers.Pass(now, std::move(entry))) return false;
  const BarrierRelease& release = context_.barriers.ReleaseOf(mark);
  directory_ = release.path();
  step_ = release.max_value();
  return Enter(tries_ > 0 ? Stage::kWrite : Stage::kCollect);
}

// Copies in memory, so that training can continue.
bool CheckpointWriter::Copy(TrainerEffects* effects) {
  if (context_.rank == 0) bytes_ = synchroniser_.DenseFile();
  if (KeepsState(context_.plan, synchroniser_)) {
    Run(CopyWorkerTask{id_, position_.step(), position_.epoch(), &state_, &program_}, effects);
  }
  return Enter(Stage::kWrite);
}

bool CheckpointWriter::Write(TrainerEffects* effects) {
  if (!bytes_.empty()) Run(WriteDenseTask{id_, &directory_, &bytes_}, effects);
  if (!state_.empty() || !program_.empty()) {
    Run(WriteWorkerTask{id_, &directory_, &state_, &program_}, effects);
  }
  return Enter(Stage::kSecondBarrier);
}

bool CheckpointWriter::PassSecondBarrier(absl::Time now, TrainerEffects* effects) {
  // The release comes when the servers have written, too. A failure of any worker or server comes
  // back in the release, so all workers agree on whether there is a checkpoint.
  const std::string name = NameOfTry();
  if (!context_.barriers.Pass(now, EntryWithResult(name, BarrierEnter::CHECKPOINT))) return false;
  const BarrierRelease& release = context_.barriers.ReleaseOf(name);
  failure_ = release.failure();
  commits_ = failure_.empty();
  again_ = release.again();
  record_ = release.record();
  if (context_.rank == 0 && commits_) {
    Run(CommitCheckpointTask{id_, &directory_, step_, &record_, depends_, &free_bytes_}, effects);
  } else if (context_.rank == 0) {
    Run(AbandonCheckpointTask{id_, &directory_, again_, &free_bytes_}, effects);
  }
  return Enter(Stage::kCommit);
}

// The result of rank 0 is that of all workers. If a part has failed, they know the result now.
bool CheckpointWriter::AfterCommit() {
  if (again_) return TryAgain();
  return Enter(depends_ && commits_ ? Stage::kThirdBarrier : Stage::kDone);
}

bool CheckpointWriter::PassThirdBarrier(absl::Time now) {
  const std::string name = absl::StrCat("commit ", NameOfTry());
  if (!context_.barriers.Pass(now, EntryWithResult(name, BarrierEnter::COMMITTED))) return false;
  const BarrierRelease& release = context_.barriers.ReleaseOf(name);
  failure_ = release.failure();
  return release.again() ? TryAgain() : Enter(Stage::kDone);
}

BarrierEnter CheckpointWriter::EntryWithResult(const std::string& name,
                                               BarrierEnter::Action action) const {
  BarrierEnter entry;
  entry.set_name(name);
  entry.set_value(step_);
  entry.set_action(action);
  entry.set_path(directory_);
  entry.set_may_fail(may_fail());
  entry.set_failure(failure_);
  entry.set_no_room(no_room_);
  return entry;
}

bool CheckpointWriter::TryAgain() {
  failure_.clear();
  no_room_ = again_ = false;
  ++tries_;
  return Enter(Stage::kMark);
}

void CheckpointWriter::Run(TrainerTask task, TrainerEffects* effects) {
  ++tasks_;
  effects->tasks.push_back(std::move(task));
}

void CheckpointWriter::OnTaskDone(const absl::Status& status) {
  --tasks_;
  if (status.ok()) return;
  const bool no_room = depends_ && IsNoRoom(status);
  if (!may_fail() && !no_room) return context_.Fail(status);
  no_room_ = no_room && (no_room_ || failure_.empty());
  if (failure_.empty()) failure_ = std::string(status.message());
}

// ---- the requested checkpoint -----------------------------------------------------------------

RequestedCheckpoint::RequestedCheckpoint(TrainerContext& context, DenseSynchroniser& synchroniser)
    : context_(context),
      checkpoint_writer_(context, synchroniser, CheckpointId::kRequested),
      own_step_(CutsAtOwnSteps(context.plan, synchroniser)),
      finishes_step_(KeepsState(context.plan, synchroniser)) {}

void RequestedCheckpoint::OnCommand(const Command& command, int64_t first_free) {
  // The same command, sent again; the answer follows when the checkpoint is written.
  if (wanted_) return;
  if (command.id() <= command_) {
    return context_.SendDone(EndpointId::Scheduler(), command.id(),
                             command.id() == command_ ? result_ : absl::OkStatus());
  }
  wanted_ = holding_ = true;
  hold_ = command.hold();
  command_ = command.id();
  path_ = command.path();
  first_free_ = first_free;
  const int64_t own = finishes_step_ ? first_free : context_.step();
  step_ = own_step_ ? std::max(own, first_cut_) : -1;
}

bool RequestedCheckpoint::Advance(absl::Time now, const TrainingState& state,
                                  TrainerEffects* effects) {
  if (!wanted_) return false;
  // Phase one: agree on the step. The barrier gives the largest `first_free` of all workers, so no
  // worker has to undo a step. Phase two: finish the steps below it, then write the checkpoint.
  if (step_ < 0) {
    const std::string plan = absl::StrCat("plan ", number());
    if (!context_.barriers.Pass(now, plan, first_free_)) return false;
    step_ = context_.barriers.MaxValue(plan);
    return true;
  }
  if (!checkpoint_writer_.in_progress()) {
    if (!state.out_of_steps && context_.step() < step_) return false;
    if (state.synchronising || !context_.pushes.empty()) return false;
    checkpoint_writer_.Begin(absl::StrCat("checkpoint ", number()), path_, step_, state.position,
                             /*ends=*/hold_);
  }
  const bool done = checkpoint_writer_.Advance(now, effects);
  const bool held = std::exchange(holding_, hold_ || (!done && checkpoint_writer_.holds()));
  if (!done) return held && !holding_;
  wanted_ = false;
  result_ = checkpoint_writer_.failure().empty()
                ? absl::OkStatus()
                : absl::UnavailableError(checkpoint_writer_.failure());
  context_.SendDone(EndpointId::Scheduler(), command_, result_);
  return true;
}

}  // namespace tandem::worker
