#include "worker/trainer_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "data/batch_source.h"

namespace tandem::worker {

absl::StatusOr<std::unique_ptr<TrainerCore>> TrainerCore::New(const job::ResolvedJob& plan,
                                                              const Options& options,
                                                              DenseParameters& dense,
                                                              BufferSource& buffers) {
  std::unique_ptr<TrainerCore> core(new TrainerCore(plan, options, dense, buffers));
  for (const job::GroupPlan& group : plan.trained_groups()) {
    TANDEM_ASSIGN_OR_RETURN(auto policy, policies::NewUpdatePolicy(group.policy, plan.workers()));
    core->context_.policies.push_back(std::move(policy));
  }
  return core;
}

TrainerCore::TrainerCore(const job::ResolvedJob& plan, const Options& options,
                         DenseParameters& dense, BufferSource& buffers)
    : options_(options),
      context_(plan, options.rank, options.incarnation, buffers, options.client,
               options.control_resend),
      synchroniser_(NewDenseSynchroniser(context_, dense)),
      pipeline_(context_, *synchroniser_, dense, options.client.wrong_view_pause),
      epoch_end_(context_),
      evaluation_(context_, *synchroniser_, options.evaluate),
      requested_checkpoint_(context_, *synchroniser_),
      best_checkpoint_(context_, *synchroniser_, CheckpointId::kBest),
      final_checkpoint_(context_, *synchroniser_, CheckpointId::kFinal) {
  context_.report.set_estimated_rows(options.estimated_rows);
  if (plan.job.data().format() == Data::PROGRAM) context_.report.WatchRows();
  context_.resumed = options.start.has_value();
  if (options.start.has_value()) {
    context_.order.StandAt(options.start->step());
    context_.epoch = options.start->epoch();
    context_.common_step = options.start->common_step();
    context_.closing_steps = options.start->closing_steps();
    context_.ended_at = options.start->ended_at();
    if (options.start->epoch_over()) {
      context_.empty_steps = context_.step() - context_.common_step + 1;
    }
    context_.report.BeginEpoch(options.start->rows());
  }
  if (options.replaces.has_value()) {
    context_.replaces = true;
    evaluation_.SetDone(options.replaces->evaluations());
    requested_checkpoint_.SetFirstCut(options.replaces->first_new_step());
    said_back_ = false;
  }
  if (options.epochs_to_first_judged > 0) {
    evaluation_.judge().ResumeAfter(options.epochs_to_first_judged - 1);
    context_.report.SetEpochsToFirstJudged(options.epochs_to_first_judged);
  }
  if (options.best.has_value()) {
    kept_ = *options.best;
    evaluation_.judge().Resume(*kept_);
    context_.report.SetBest(*kept_);
  }
  next_checkpoint_step_ = context_.step();
}

// ---- events -----------------------------------------------------------------------------------

void TrainerCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view,
                         TrainerEffects* effects) {
  have_view_ = true;
  context_.map = view;
  context_.client.OnView(now, std::move(view));
  Advance(now, effects);
}

void TrainerCore::OnFrame(absl::Time now, const ParsedFrame& frame, TrainerEffects* effects) {
  switch (frame.header.kind) {
    case FrameKind::kRows:
    case FrameKind::kAck:
    case FrameKind::kWaiting:
    case FrameKind::kRefresh:
      context_.client.OnFrame(now, frame);
      break;
    case FrameKind::kControl:
      OnControl(now, frame);
      break;
    default:
      effects->log.push_back(absl::StrCat("ignored unexpected frame: ", frame.DebugString()));
      break;
  }
  Advance(now, effects);
}

void TrainerCore::OnControl(absl::Time now, const ParsedFrame& frame) {
  const absl::StatusOr<Control> parsed = frame.ParseControl();
  if (!parsed.ok()) return;
  const Control& control = *parsed;
  const EndpointId from = frame.header.sender;
  if (control.has_barrier_release()) {
    context_.barriers.OnRelease(control.barrier_release());
  } else if (control.has_command()) {
    OnCommand(now, control.command());
  } else if (control.has_evaluation_share()) {
    evaluation_.OnShare(from, control.evaluation_share(), frame.values());
  } else if (control.has_command_done() && from == EndpointId::Worker(0)) {
    evaluation_.OnShareTaken(control.command_done().id());
  }
}

void TrainerCore::OnCommand(absl::Time now, const Command& command) {
  if (command.kind() == Command::START && !started_) {
    started_ = true;
    next_report_ = now + ReportPeriod();
  }
  if (command.kind() == Command::STOP) stop_ = true;
  if (command.kind() != Command::CHECKPOINT) return;
  // With `hold`, STOP follows the checkpoint. If the program computes no more steps, the current
  // step would never end. The step has pushed nothing yet, so the trainer takes it back, and the
  // checkpoint does not wait for it.
  const bool takes_back = command.hold() && context_.order.computing() && options_.take_back;
  if (takes_back && options_.take_back(context_.step())) context_.order.TakeBack();
  requested_checkpoint_.OnCommand(command, context_.step() + (context_.order.step_begun() ? 1 : 0));
}

void TrainerCore::OnLost(absl::Time now, EndpointId peer, absl::string_view why) {
  context_.client.OnLost(now, peer, why);
  if (peer == EndpointId::Worker(0)) evaluation_.OnRankZeroLost(now);
}

void TrainerCore::OnTick(absl::Time now, TrainerEffects* effects) {
  context_.client.OnTick(now);
  // A checkpoint has no timeout: to write is progress.
  for (const CheckpointWriter* writer :
       {&requested_checkpoint_.saving(), &best_checkpoint_, &final_checkpoint_}) {
    if (writer->writes()) ++context_.progress;
  }
  if (started_ && !finished() && now >= next_report_) {
    SendReport(now, false);
    context_.report.BeginInterval();
    // All workers count periods from START, so that their reports are of the same moments.
    const absl::Duration period = ReportPeriod();
    absl::Duration late;
    next_report_ += (1 + absl::IDivDuration(now - next_report_, period, &late)) * period;
  }
  Advance(now, effects);
}

void TrainerCore::OnTaskDone(absl::Time now, const TrainerTask& task, const absl::Status& status,
                             TrainerEffects* effects) {
  DealOut(task, status);
  Advance(now, effects);
}

void TrainerCore::DealOut(const TrainerTask& task, const absl::Status& status) {
  const bool writes = std::holds_alternative<CopyWorkerTask>(task) ||
                      std::holds_alternative<WriteDenseTask>(task) ||
                      std::holds_alternative<WriteWorkerTask>(task) ||
                      std::holds_alternative<CommitCheckpointTask>(task);
  // CheckpointWriter decides about write errors.
  if (!status.ok() && !writes) return context_.Fail(status);
  std::visit(
      Overloaded{
          [&](const FetchTask& t) { pipeline_.OnTaskDone(t); },
          [&](const ComputeTask& t) { pipeline_.OnTaskDone(t); },
          [&](const SynchroniseTask& t) { pipeline_.OnTaskDone(t); },
          [&](const EpochEndTask& t) {
            if (!t.all) return;
            context_.report.AddMissedSums(missed_sums_);
            context_.report.AddCollectiveBytes(epoch_end_bytes_);
            missed_sums_.clear();
            epoch_end_bytes_ = 0;
            dense_end_ = DenseEnd::kReached;
          },
          [&](const FetchTestTask&) { evaluation_.OnTaskDone(); },
          [&](const ScoreTask&) { evaluation_.OnTaskDone(); },
          [&](const FillShareTask&) { evaluation_.OnTaskDone(); },
          [&](const MergeSharesTask&) { evaluation_.OnTaskDone(); },
          [&](const GatherDenseTask& t) { CheckpointWriterOf(t.checkpoint).OnCollected(); },
          [&](const CopyWorkerTask& t) { CheckpointWriterOf(t.checkpoint).OnTaskDone(status); },
          [&](const WriteDenseTask& t) { CheckpointWriterOf(t.checkpoint).OnTaskDone(status); },
          [&](const WriteWorkerTask& t) { CheckpointWriterOf(t.checkpoint).OnTaskDone(status); },
          [&](const CommitCheckpointTask& t) {
            CheckpointWriterOf(t.checkpoint).OnTaskDone(status);
          },
          [&](const AbandonCheckpointTask& t) {
            CheckpointWriterOf(t.checkpoint).OnTaskDone(status);
          },
      },
      task);
}

CheckpointWriter& TrainerCore::CheckpointWriterOf(CheckpointId id) {
  if (id == CheckpointId::kRequested) return requested_checkpoint_.saving();
  return id == CheckpointId::kBest ? best_checkpoint_ : final_checkpoint_;
}

void TrainerCore::OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                               TrainerEffects* effects) {
  ++context_.progress;
  if (!completion.status.ok()) context_.Fail(completion.status);
  context_.order.OnOpenStep(completion.open_step);
  const uint64_t request = completion.request;
  (void)(context_.pushes.OnDone(now, request, effects) || evaluation_.OnCompletion(request) ||
         pipeline_.OnCompletion(now, completion, effects));
}

// ---- the order of things ----------------------------------------------------------------------

void TrainerCore::Advance(absl::Time now, TrainerEffects* effects) {
  // Finished client requests go first, because they free lanes and pushes: the state machines below
  // must see the newest state. AdvanceOnce then does one thing, which may finish further requests
  // at once.
  do {
    for (const client::ClientCore::Completion& completion : context_.client.completions()) {
      OnCompletion(now, completion, effects);
    }
    context_.client.completions().clear();
  } while (context_.failure.ok() && AdvanceOnce(now, effects));
  context_.report.SetPaused(now, requested_checkpoint_.saving().holds() ||
                                     (phase_ > Phase::kEpochEnd && phase_ < Phase::kEnd));
  CollectOutgoing(now, effects);
}

bool TrainerCore::AdvanceOnce(absl::Time now, TrainerEffects* effects) {
  // STOP overrides everything. The requested checkpoint goes before the current phase, because the
  // phase asks it which steps (HoldsFrom) and pushes (holds_pushes) must wait.
  if (stop_ && !finished()) return Enter(Phase::kFinished);
  if (AdvanceRequestedCheckpoint(now, effects)) return true;
  switch (phase_) {
    case Phase::kWaitStart:
      return started_ && have_view_ && Enter(Phase::kPrepare);
    case Phase::kPrepare:
      return AdvancePrepare(now);
    case Phase::kTraining:
      return AdvanceTraining(now, effects);
    case Phase::kEpochEnd:
      return AdvanceEpochEnd(now, effects);
    case Phase::kEvaluation:
    case Phase::kTestBest:
      return AdvanceEvaluation(now, effects);
    case Phase::kCheckpointBest:
      return best_checkpoint_.Advance(now, effects) && KeptBest(now);
    case Phase::kCheckpoint:
      return final_checkpoint_.Advance(now, effects) && Enter(Phase::kEnd);
    case Phase::kEnd:
      return AdvanceEnd(now);
    case Phase::kFinished:
      return false;
  }
  return false;
}

bool TrainerCore::Enter(Phase phase) {
  phase_ = phase;
  return true;
}

bool TrainerCore::AdvancePrepare(absl::Time now) {
  if (!synchroniser_->Prepare(now)) return false;
  if (!options_.start.has_value()) {
    pipeline_.Begin();
    return Enter(Phase::kTraining);
  }
  const TrainPosition& start = *options_.start;
  pipeline_.Resume(start, options_.replaces.has_value() ? options_.replaces->first_step() : 0);
  if (!start.epoch_over()) return Enter(Phase::kTraining);
  return BeginEvaluation(now);
}

// The position of this worker for a checkpoint: between two steps, or at the end of an epoch.
//
// Steps after the limit (train.max_steps) are empty because of the limit, and say nothing about the
// end of the data. A position after such a step (`limited`) names the limit, because a run with a
// larger limit continues in the same epoch (resume_position.h). Where one empty step closes an
// epoch, all workers have that step at the same time. So a position after it marks the epoch as
// over, even if this worker has not been told yet. Where several steps close an epoch (`several`),
// the number of empty steps after the limit is known only once the epoch is over.
TrainPosition TrainerCore::Position() const {
  const bool lockstep = context_.plan.lockstep;
  const bool told = phase_ >= Phase::kEvaluation ||
                    (phase_ == Phase::kEpochEnd && (lockstep || epoch_end_.caught_up())) ||
                    (phase_ == Phase::kTraining && lockstep && context_.order.ends());
  TrainPosition position;
  position.set_epoch(context_.epoch);
  const bool several = lockstep && synchroniser_->HasOwnState();
  const int64_t closed = several ? context_.step() - context_.empty_steps + 1 : context_.step();
  const int64_t reached = lockstep ? closed : context_.common_step;
  const bool limited = ((lockstep && !several) || told) && reached > context_.StepLimit();
  const bool over = told || limited;
  position.set_epoch_over(over);
  if (limited) position.set_max_steps(context_.plan.job.train().max_steps());
  position.set_step(context_.step());
  position.set_first_step(context_.order.first_step());
  position.set_rows(context_.epoch_rows);
  if (context_.place.has_value()) *position.mutable_place() = *context_.place;
  position.set_common_step(lockstep && over ? closed : context_.common_step);
  position.set_closing_steps(context_.closing_steps);
  position.set_ended_at(context_.ended_at);
  return position;
}

bool TrainerCore::AdvanceRequestedCheckpoint(absl::Time now, TrainerEffects* effects) {
  if (phase_ < Phase::kTraining || !requested_checkpoint_.wanted()) return false;
  // The best model's checkpoint is marked and must finish first: checkpoints are written one after
  // the other.
  if (best_checkpoint_.marked()) return false;
  RequestedCheckpoint::TrainingState state;
  state.position = Position();
  // In a lockstep job all workers take every step, even without data.
  state.out_of_steps =
      !context_.plan.lockstep && phase_ >= Phase::kEpochEnd && epoch_end_.out_of_steps();
  state.synchronising = context_.order.synchronising();
  return requested_checkpoint_.Advance(now, state, effects);
}

bool TrainerCore::AdvanceTraining(absl::Time now, TrainerEffects* effects) {
  const bool moved = pipeline_.Advance(now, requested_checkpoint_.HoldsFrom(), effects);
  if (!pipeline_.over()) return moved;
  // Tell the quorum sums that this worker has no data left, before it waits for the others at the
  // end of the epoch: the sums must not wait for its gradients.
  if (synchroniser_->EndsEpochs()) effects->tasks.push_back(EpochEndTask());
  dense_end_ = DenseEnd::kAhead;
  epoch_end_.Begin();
  return Enter(Phase::kEpochEnd);
}

bool TrainerCore::AdvanceEpochEnd(absl::Time now, TrainerEffects* effects) {
  const bool moved = epoch_end_.Advance(now, requested_checkpoint_.holds_pushes());
  if (!epoch_end_.over()) return moved;
  // With quorum sums, gradients that no sum contains yet are still missing from the model. All
  // workers finish them in one task, before the evaluation reads the parameters.
  if (synchroniser_->EndsEpochs() && dense_end_ != DenseEnd::kReached) {
    if (dense_end_ == DenseEnd::kUnderWay) return false;
    dense_end_ = DenseEnd::kUnderWay;
    effects->tasks.push_back(EpochEndTask{true, context_.step(), &missed_sums_, &epoch_end_bytes_});
    return true;
  }
  return BeginEvaluation(now);
}

// The scheduler receives a report with all rows of the epoch before it receives this worker's entry
// to the evaluation barrier.
bool TrainerCore::BeginEvaluation(absl::Time now) {
  evaluation_.Begin();
  if (context_.LastEpoch() || evaluation_.IsDue()) {
    context_.report.SetEpochsTrained(context_.epoch + 1);
    SendReport(now, false);
    context_.report.BeginInterval();
  }
  return Enter(Phase::kEvaluation);
}

bool TrainerCore::AdvanceEvaluation(absl::Time now, TrainerEffects* effects) {
  const bool moved = evaluation_.Advance(now, effects);
  ReportEvaluation(now);
  if (!evaluation_.over()) return moved;
  if (phase_ == Phase::kTestBest) return NextEpochOrEnd();
  const Verdict verdict = evaluation_.verdict();
  stops_early_ = verdict.stop;
  if (!verdict.best) return NextEpochOrEnd();
  if (!options_.checkpoint) return KeptBest(now);
  // Write the checkpoint before the test rows are scored: the scores must be those of the saved
  // model.
  best_checkpointed_ = context_.step();
  best_checkpoint_.Begin(absl::StrCat("checkpoint the best of epoch ", context_.epoch),
                         options_.checkpoint_path, context_.step(), Position());
  return Enter(Phase::kCheckpointBest);
}

void TrainerCore::ReportEvaluation(absl::Time now) {
  std::optional<std::string> result = evaluation_.TakeReport();
  if (!result.has_value()) return;
  // Without test rows, the validation result that was judged is the result of the run.
  if (phase_ == Phase::kTestBest && result->empty()) {
    context_.report.EvaluationCounts();
  } else {
    context_.report.SetEvaluation(evaluation_.done() + 1, *std::move(result), evaluation_.aside());
  }
  context_.report.SetEpochsToFirstJudged(evaluation_.judge().first_epoch() + 1);
  if (kept_.has_value()) {
    kept_->set_stopped(evaluation_.judge().best().stopped());
    context_.report.SetBest(*kept_);
  }
  SendReport(now, false);
}

// The evaluation becomes the reported best one only now, when its model is in a checkpoint. A run
// that ends before this point, or resumes from an earlier checkpoint, has an older best evaluation.
bool TrainerCore::KeptBest(absl::Time now) {
  if (context_.rank == 0) {
    kept_ = evaluation_.judge().best();
    context_.report.SetBest(*kept_);
  }
  const Data& data = context_.plan.job.data();
  if (data::HasTestRows(data) || data.format() == Data::PROGRAM) {
    evaluation_.BeginTest();
    return Enter(Phase::kTestBest);
  }
  context_.report.EvaluationCounts();
  SendReport(now, false);
  return NextEpochOrEnd();
}

bool TrainerCore::NextEpochOrEnd() {
  if (!context_.LastEpoch() && !stops_early_) {
    ++context_.epoch;
    context_.closing_steps += context_.empty_steps;
    context_.ended_at = 0;
    // With keep_best every report repeats the result of the run until a newer result replaces it:
    // the report that carried it may be lost, and later evaluations need not be better.
    if (!kept_.has_value()) context_.report.ClearEvaluation();
    context_.report.BeginEpoch();
    pipeline_.Begin();
    return Enter(Phase::kTraining);
  }
  // If the last step is the best one, its checkpoint exists already.
  if (!options_.checkpoint || best_checkpointed_ == context_.step()) return Enter(Phase::kEnd);
  final_checkpoint_.Begin("checkpoint", options_.checkpoint_path, context_.step(), Position());
  return Enter(Phase::kCheckpoint);
}

bool TrainerCore::AdvanceEnd(absl::Time now) {
  // The worker marks itself done before it enters the barrier, so that the report sent with the
  // entry says so (CollectOutgoing). At the barrier the scheduler collects the servers' reports
  // (END), and sends STOP after the release.
  said_done_ = true;
  context_.barriers.Pass(now, "end", context_.step(), BarrierEnter::END);
  // STOP ends the phase.
  return false;
}

void TrainerCore::CollectOutgoing(absl::Time now, TrainerEffects* effects) {
  entries_.clear();
  context_.barriers.AppendDue(now, &entries_);
  // Send a report before each barrier entry that others wait for, in case the last report was lost.
  // A worker that is released has therefore been heard.
  const bool report = said_done_ || context_.report.has_evaluation() || Marking() != nullptr;
  // The scheduler measures how long it took to replace a worker.
  const bool back = !said_back_ && context_.step() > options_.replaces->first_step();
  said_back_ = said_back_ || back;
  // In a new epoch the scheduler knows no place yet where another process could begin.
  const bool begins = ReportsPlaces() && place_of_epoch_ != context_.epoch && place_of_epoch_ >= 0;
  if (ReportsPlaces()) place_of_epoch_ = context_.epoch;
  if ((!entries_.empty() && report) || back || begins || CheckpointIsNear()) {
    SendReport(now, said_done_);
  }
  for (const Control& entry : entries_) context_.SendControl(EndpointId::Scheduler(), entry);
  for (auto* queue : {&context_.client.out(), &context_.control_out}) {
    for (Outgoing& out : *queue) effects->out.push_back(std::move(out));
    queue->clear();
  }
}

// ---- for others -------------------------------------------------------------------------------

// The scheduler requests checkpoints by step number (checkpoint.every_steps), so rank 0 reports as
// soon as it reaches such a step.
bool TrainerCore::CheckpointIsNear() {
  const int64_t every = context_.plan.job.checkpoint().every_steps();
  if (every == 0 || !options_.checkpoint || context_.rank != 0) return false;
  if (phase_ < Phase::kTraining || context_.step() < next_checkpoint_step_) return false;
  next_checkpoint_step_ = (context_.step() / every + 1) * every;
  return context_.step() > 0;
}

const CheckpointWriter* TrainerCore::Marking() const {
  for (const CheckpointWriter* saving :
       {&requested_checkpoint_.saving(), &best_checkpoint_, &final_checkpoint_}) {
    if (saving->reports_position()) return saving;
  }
  return nullptr;
}

// Whether reports have the place of this worker. The counts of a report with a place must be those
// of the steps before the place.
bool TrainerCore::ReportsPlaces() const {
  return phase_ == Phase::kTraining && !context_.plan.lockstep && !context_.order.synchronising();
}

absl::Duration TrainerCore::ReportPeriod() const {
  constexpr absl::Duration kShortest = absl::Milliseconds(1);
  return std::max(kShortest, absl::Seconds(context_.plan.job.limits().report_interval_seconds()));
}

void TrainerCore::SendReport(absl::Time now, bool done) {
  Control control;
  *control.mutable_progress() = context_.report.Take(now, context_.plan, context_.client,
                                                     context_.epoch, context_.step(), done);
  if (const CheckpointWriter* const saving = Marking(); saving != nullptr) {
    *control.mutable_progress()->mutable_position() = saving->position();
  }
  if (ReportsPlaces()) {
    TrainPosition* const place = control.mutable_progress()->mutable_trains_at();
    *place = Position();
    place->set_files_hash(options_.files_hash);
  }
  control.mutable_progress()->set_evaluations(evaluation_.done());
  context_.SendControl(EndpointId::Scheduler(), control);
}

Activity TrainerCore::Doing(absl::Time now, const Activity& synchroniser) const {
  const absl::string_view barrier = context_.barriers.WaitingAt();
  if (!barrier.empty()) return {absl::StrCat("at barrier ", barrier), {}};
  Activity doing = pipeline_.Doing(synchroniser);
  if (doing.text.empty()) doing = context_.client.Waiting(now);
  if (doing.text.empty()) doing.text = absl::StrCat("step ", context_.step());
  return doing;
}

}  // namespace tandem::worker
