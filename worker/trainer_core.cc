#include "worker/trainer_core.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/manifest.h"

namespace tandem {
namespace {

// Dense parameters on servers: rows of a block each, in one piece.
void JoinBlocks(absl::Span<const float* const> blocks, std::vector<float>* joined) {
  joined->resize(blocks.size() * kDenseBlockFloats);
  float* to = joined->data();
  for (const float* const block : blocks) to = std::copy_n(block, kDenseBlockFloats, to);
}

// Their gradient, which may be longer, back into blocks.
void CutIntoBlocks(absl::Span<const float> joined, absl::Span<float* const> blocks) {
  const float* from = joined.data();
  for (float* const block : blocks) {
    std::copy_n(from, kDenseBlockFloats, block);
    from += kDenseBlockFloats;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainerCore>> TrainerCore::New(const JobPlan& plan,
                                                              const Options& options,
                                                              DenseParameters& dense,
                                                              BufferSource& buffers) {
  std::unique_ptr<TrainerCore> core(new TrainerCore(plan, options, dense, buffers));
  TANDEM_RETURN_IF_ERROR(core->Init());
  return core;
}

TrainerCore::TrainerCore(const JobPlan& plan, const Options& options, DenseParameters& dense,
                         BufferSource& buffers)
    : plan_(plan), options_(options), dense_(dense), buffers_(buffers) {}

TrainerCore::~TrainerCore() = default;

absl::Status TrainerCore::Init() {
  for (const GroupPlan& group : plan_.groups) {
    TANDEM_ASSIGN_OR_RETURN(auto policy, NewUpdatePolicy(group.policy, plan_.workers()));
    policies_.push_back(std::move(policy));
  }
  client_ = std::make_unique<ClientCore>(plan_, EndpointId::Worker(options_.rank),
                                         options_.incarnation, buffers_, options_.client);
  lanes_.resize(static_cast<size_t>(plan_.job.train().depth()) + 2);
  const size_t padded = dense_.padded().size();
  for (Lane& lane : lanes_) lane.slot.dense_gradient.assign(padded + 1, 0.0f);
  return absl::OkStatus();
}

// ---- events -----------------------------------------------------------------------------------

void TrainerCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view,
                         TrainerEffects* effects) {
  have_view_ = true;
  client_->OnView(now, std::move(view));
  Advance(now, effects);
}

void TrainerCore::OnFrame(absl::Time now, const ParsedFrame& frame, TrainerEffects* effects) {
  switch (frame.header.kind) {
    case FrameKind::kRows:
    case FrameKind::kAck:
    case FrameKind::kWaiting:
      client_->OnFrame(now, frame);
      break;
    case FrameKind::kControl:
      OnControl(frame);
      break;
    default:
      effects->log.push_back(absl::StrCat("ignored: ", frame.DebugString()));
      break;
  }
  Advance(now, effects);
}

void TrainerCore::OnControl(const ParsedFrame& frame) {
  const absl::StatusOr<Control> parsed = frame.ParseControl();
  if (!parsed.ok()) return;
  const Control& control = *parsed;
  if (control.has_barrier_release()) {
    const auto it = barriers_.find(control.barrier_release().name());
    if (it == barriers_.end() || it->second.entry.name().empty()) return;
    it->second.released = true;
    it->second.max_value = control.barrier_release().max_value();
  } else if (control.has_command()) {
    const Command& command = control.command();
    if (command.kind() == Command::START) started_ = true;
    if (command.kind() == Command::STOP) stop_ = true;
    if (command.kind() == Command::SAVE) OnSaveCommand(command);
  } else if (control.has_evaluation_share() && options_.rank == 0) {
    const EvaluationShare& part = control.evaluation_share();
    const EndpointId from = frame.header.sender;
    // One that comes again changes nothing: a task may be reading the first.
    if (part.evaluation() == evaluations_ && from.role == Role::kWorker &&
        from.index < plan_.workers() && parts_.emplace(from.index, part).second) {
      payloads_[from.index] = frame.values();
    }
    // Also for one that was merged before: its sender only wants to know.
    SendDone(frame.header.sender, static_cast<uint64_t>(part.evaluation()));
  } else if (control.has_command_done() && frame.header.sender == EndpointId::Worker(0)) {
    if (control.command_done().id() == static_cast<uint64_t>(evaluations_)) {
      part_acknowledged_ = true;
    }
  }
}

void TrainerCore::OnSaveCommand(const Command& command) {
  if (!requested_.name.empty()) return;  // this one, sent again: answered when it is written
  if (command.id() <= save_command_) return SendDone(EndpointId::Scheduler(), command.id());
  save_command_ = command.id();
  requested_.name = absl::StrCat("save ", command.id());
  requested_.path = command.path();
  requested_.request = command.id() & 0xffffffff;
  plan_barrier_ = absl::StrCat("plan ", command.id());
  // A step that has begun needs its peers: it must be finished first.
  const bool begun = phase_ == Phase::kTraining &&
                     (LaneOf(step_).state == SlotState::kComputing || synchronising_);
  save_value_ = step_ + (begun ? 1 : 0);
}

void TrainerCore::SendDone(EndpointId to, uint64_t id) {
  Control done;
  done.mutable_command_done()->set_id(id);
  SendControl(to, done);
}

void TrainerCore::OnLost(absl::Time now, EndpointId peer) {
  client_->OnLost(now, peer);
  if (peer == EndpointId::Worker(0)) {
    next_part_send_ = std::min(next_part_send_, now + options_.control_resend);
  }
}

void TrainerCore::OnTick(absl::Time now, TrainerEffects* effects) {
  client_->OnTick(now);
  if (started_ && !finished() && now >= next_report_) {
    SendReport(now, false);
    next_report_ = now + absl::Seconds(plan_.job.limits().report_seconds());
  }
  Advance(now, effects);
}

void TrainerCore::OnTaskDone(absl::Time now, const TrainerTask& task, const absl::Status& status,
                             TrainerEffects* effects) {
  if (!status.ok()) Fail(status);
  switch (task.kind) {
    case TrainerTask::Kind::kFetch: {
      fetching_ = false;
      LaneOf(task.slot->step).state = SlotState::kFetched;
      if (task.slot->batch.samples == 0) exhausted_ = true;
      break;
    }
    case TrainerTask::Kind::kCompute:
      if (status.ok()) AfterCompute(now, effects);
      break;
    case TrainerTask::Kind::kSynchronise:
      synchronised_ = status.ok();
      collective_bytes_ += task.slot->bytes_sent;
      ++progress_count_;
      break;
    case TrainerTask::Kind::kGatherSlots:
      (requested_.gathering && !requested_.gathered ? requested_ : final_save_).gathered = true;
      break;
    case TrainerTask::Kind::kSaveDense:
    case TrainerTask::Kind::kCommitSave:
      (task.text == &requested_.text ? requested_ : final_save_).task_running = false;
      break;
    default:
      task_running_ = false;
      break;
  }
  Advance(now, effects);
}

// ---- the machine ------------------------------------------------------------------------------

void TrainerCore::Advance(absl::Time now, TrainerEffects* effects) {
  do {
    for (const ClientCore::Completion& completion : client_->completions()) {
      OnClientCompletion(now, completion, effects);
    }
    client_->completions().clear();
  } while (failure_.ok() && AdvanceOnce(now, effects));
  CollectOutgoing(now, effects);
}

bool TrainerCore::AdvanceOnce(absl::Time now, TrainerEffects* effects) {
  if (stop_ && phase_ != Phase::kFinished) {
    phase_ = Phase::kFinished;
    return true;
  }
  if (AdvanceRequestedSave(now, effects)) return true;
  switch (phase_) {
    case Phase::kWaitStart:
      if (!started_ || !have_view_) return false;
      phase_ = DenseOnServers() ? Phase::kAssign : Phase::kTraining;
      return true;
    case Phase::kAssign:
      return AdvanceAssign(now);
    case Phase::kTraining:
      return AdvanceTraining(now, effects);
    case Phase::kDrain:
      return AdvanceDrain(now);
    case Phase::kEndPush:
      return AdvanceEndPush(now);
    case Phase::kCatchUp:
      return AdvanceCatchUp(now);
    case Phase::kEvaluation:
      return AdvanceEvaluation(now, effects);
    case Phase::kSave:
      return AdvanceSave(now, effects);
    case Phase::kEnd:
      return AdvanceEnd(now);
    case Phase::kFinished:
      return false;
  }
  return false;
}

void TrainerCore::CollectOutgoing(absl::Time now, TrainerEffects* effects) {
  for (auto& [name, barrier] : barriers_) {
    if (barrier.entry.name().empty() || barrier.released || barrier.next_send > now) continue;
    barrier.next_send = now + options_.control_resend;
    Control control;
    *control.mutable_barrier_enter() = barrier.entry;
    SendControl(EndpointId::Scheduler(), control);
  }
  for (auto* queue : {&client_->out(), &control_out_}) {
    for (Outgoing& out : *queue) effects->out.push_back(std::move(out));
    queue->clear();
  }
}

bool TrainerCore::PassBarrier(absl::Time now, const std::string& name, int64_t value,
                              BarrierEnter::Action action, const std::string& path) {
  Barrier& barrier = barriers_[name];
  if (barrier.entry.name().empty()) {
    barrier.entry.set_name(name);
    barrier.entry.set_value(value);
    barrier.entry.set_parties(plan_.workers());
    barrier.entry.set_action(action);
    barrier.entry.set_path(path);
    barrier.next_send = now;
  }
  return barrier.released;
}

void TrainerCore::SendControl(EndpointId to, const Control& control, Buffer values) {
  FrameHeader header;
  header.sender = EndpointId::Worker(options_.rank);
  header.incarnation = options_.incarnation;
  control_out_.push_back({to, EncodeControlFrame(buffers_, header, control, std::move(values))});
}

void TrainerCore::Fail(absl::Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

void TrainerCore::OnClientCompletion(absl::Time now, const ClientCore::Completion& completion,
                                     TrainerEffects* effects) {
  ++progress_count_;
  if (!completion.status.ok()) Fail(completion.status);
  if (completion.request == probe_) probe_ = 0;
  if (const auto push = pushes_.find(completion.request); push != pushes_.end()) {
    open_step_ = std::max(open_step_, completion.open_step);
    effects->transfers.push_back({true, push->second.step, push->second.since, now});
    pushes_.erase(push);
    return;
  }
  if (reads_.erase(completion.request) > 0) return;
  for (Save* save : {&requested_, &final_save_}) {
    if (save->reads.erase(completion.request) > 0) return;
  }
  for (Lane& lane : lanes_) {
    if (lane.reads.erase(completion.request) == 0) continue;
    const bool lockstep_read = plan_.lockstep && DenseOnServers();
    if (lane.reads.empty()) {
      lane.state = SlotState::kReady;
      JoinBlocks(lane.slot.dense_rows.at(), &lane.slot.dense);
      lane.slot.dense_rows.Clear();
      effects->transfers.push_back({false, lane.slot.step, lane.read_since, now});
    }
    // A step without any sample has just closed: that was the end of the epoch.
    if (lockstep_read && completion.closed_samples == 0 && lane.slot.step > epoch_first_step_ &&
        lockstep_reads_.erase(completion.request) > 0) {
      epoch_ended_ = true;
    }
    lockstep_reads_.erase(completion.request);
    return;
  }
}

// ---- dense parameters to the servers, before step 0 -------------------------------------------

bool TrainerCore::AdvanceAssign(absl::Time now) {
  if (phase_part_ == 0) {
    phase_part_ = 1;
    if (options_.rank == 0) {
      assigned_rows_ = dense_.RowsWithSlots();
      ClientCore::PushInfo info;
      info.group = plan_.tables[static_cast<size_t>(plan_.dense_table)].group;
      info.flags = kFlagAssign | kFlagWithSlots;
      const TableKeys keys{static_cast<uint32_t>(plan_.dense_table), dense_.block_keys()};
      const absl::Span<const float> values = assigned_rows_;
      pushes_[client_->Push(now, info, {&keys, 1}, {&values, 1})] = {0, now};
    }
    return true;
  }
  if (!pushes_.empty() || !PassBarrier(now, "assigned", 0)) return false;
  phase_part_ = 0;
  assigned_rows_.clear();
  phase_ = Phase::kTraining;
  return true;
}

// ---- training ---------------------------------------------------------------------------------

bool TrainerCore::AdvanceTraining(absl::Time now, TrainerEffects* effects) {
  if (epoch_ended_) {
    EndEpoch();
    return true;
  }
  if (SkipToOpenStep(now)) return true;
  const bool fetched = StartFetch(effects);
  const bool read = StartReads(now);
  return StartCompute(now, effects) || AdvanceSynchronisation(now, effects) || fetched || read;
}

// A step of this worker came too late somewhere, and was dropped there. It goes on at the step that is
// open: an empty push covers those between, and the batches read ahead are for later steps now. A
// save that all have agreed on is not skipped.
bool TrainerCore::SkipToOpenStep(absl::Time now) {
  int64_t to = open_step_;
  if (!requested_.name.empty()) {
    to = std::min(to, requested_.step < 0 ? save_value_ : requested_.step);
  }
  if (to <= step_ || fetching_ || synchronising_) return false;
  if (LaneOf(step_).state == SlotState::kComputing) return false;
  PushEmptyAll(now, step_, to - 1, 0);
  const int64_t skipped = to - step_;
  for (Lane& lane : lanes_) {
    if (lane.slot.step < 0) continue;
    if (lane.state != SlotState::kFetched) {
      CancelReads(&lane);
      lane.state = SlotState::kFetched;
    }
    lane.slot.step += skipped;
    if (lane.slot.step >= StepLimit()) lane.slot.batch.Clear();
  }
  lane_shift_ += skipped;
  next_fetch_ += skipped;
  step_ = pushed_ = next_read_ = to;
  ++progress_count_;
  return true;
}

bool TrainerCore::StartFetch(TrainerEffects* effects) {
  if (fetching_) return false;
  const int64_t lookahead = static_cast<int64_t>(lanes_.size()) - 1;
  if (next_fetch_ > step_ + lookahead || LaneOf(next_fetch_).state != SlotState::kFree)
    return false;
  Lane& lane = LaneOf(next_fetch_);
  lane.slot.step = next_fetch_;
  lane.slot.epoch = epoch_;
  if (next_fetch_ >= StepLimit()) exhausted_ = true;
  if (exhausted_) {
    lane.slot.batch.Clear();
    lane.state = SlotState::kFetched;
  } else {
    lane.state = SlotState::kFetching;
    fetching_ = true;
    TrainerTask task;
    task.kind = TrainerTask::Kind::kFetch;
    task.slot = &lane.slot;
    effects->tasks.push_back(std::move(task));
  }
  ++next_fetch_;
  return true;
}

bool TrainerCore::DenseIn(uint32_t group) const {
  return DenseOnServers() && plan_.tables[static_cast<size_t>(plan_.dense_table)].group == group;
}

// The sparse inputs of a group in their order, then the dense parameters if they are in it.
std::vector<TableKeys> TrainerCore::GroupKeys(const StepSlot& slot, uint32_t group) const {
  std::vector<TableKeys> keys;
  for (const SparseInput& input : slot.batch.sparse) {
    if (plan_.tables[input.table].group == group) keys.push_back({input.table, input.keys});
  }
  if (DenseIn(group) && slot.batch.samples > 0) {
    keys.push_back({static_cast<uint32_t>(plan_.dense_table), dense_.block_keys()});
  }
  return keys;
}

bool TrainerCore::StartReads(absl::Time now) {
  if (next_read_ >= next_fetch_ || next_read_ > pushed_ + plan_.job.train().depth()) return false;
  Lane& lane = LaneOf(next_read_);
  if (lane.state != SlotState::kFetched) return false;
  StepSlot& slot = lane.slot;
  // Out of data: steps of a lockstep job go on empty, others are at their end.
  if (slot.batch.samples == 0 && !plan_.lockstep) return false;
  lane.state = SlotState::kReading;
  lane.read_since = now;
  slot.rows.resize(slot.batch.sparse.size());
  for (const GroupPlan& group : plan_.groups) {
    const std::vector<TableKeys> keys = GroupKeys(slot, group.id);
    std::vector<PulledRows*> rows;
    for (size_t i = 0; i < slot.batch.sparse.size(); ++i) {
      if (plan_.tables[slot.batch.sparse[i].table].group == group.id) rows.push_back(&slot.rows[i]);
    }
    if (rows.size() < keys.size()) rows.push_back(&slot.dense_rows);
    const uint64_t read = client_->PullInPlace(now, group.id, slot.step, keys, rows, 0);
    lane.reads.insert(read);
    if (policies_[group.id]->properties().lockstep) lockstep_reads_.insert(read);
  }
  ++next_read_;
  return true;
}

int64_t TrainerCore::ClockGap() const {
  int64_t gap = 0;
  for (const GroupPlan& group : plan_.groups) {
    const int64_t slowest = client_->largest_min_clock(group.id);
    if (slowest < step_) gap = std::max(gap, step_ - slowest);
  }
  return gap;
}

int64_t TrainerCore::UnacknowledgedSteps() const {
  std::set<int64_t> steps;
  for (const auto& [request, push] : pushes_) steps.insert(push.step);
  return static_cast<int64_t>(steps.size());
}

bool TrainerCore::StartCompute(absl::Time now, TrainerEffects* effects) {
  (void)now;
  Lane& lane = LaneOf(step_);
  if (synchronising_ || lane.slot.step != step_ || HeldForSave()) return false;
  const bool out_of_data = lane.slot.batch.samples == 0;
  if (out_of_data && !plan_.lockstep && lane.state == SlotState::kFetched) {
    EndEpoch();
    return true;
  }
  if (lane.state != SlotState::kReady) return false;
  if (UnacknowledgedSteps() >= plan_.job.train().max_unacknowledged()) return false;
  for (const GroupPlan& group : plan_.groups) {
    if (!policies_[group.id]->MayStart(step_, client_->largest_min_clock(group.id))) {
      AskHowFar(now, group.id);
      return false;
    }
  }
  lane.state = SlotState::kComputing;
  step_clock_gap_ = ClockGap();
  if (!out_of_data) PreparePushes(&lane.slot);
  lane.slot.loss_sum = 0;
  if (out_of_data) {
    std::fill(lane.slot.dense_gradient.begin(), lane.slot.dense_gradient.end(), 0.0f);
    AfterCompute(now, effects);
    return true;
  }
  TrainerTask task;
  task.kind = TrainerTask::Kind::kCompute;
  task.slot = &lane.slot;
  effects->tasks.push_back(std::move(task));
  return true;
}

void TrainerCore::PreparePushes(StepSlot* slot) {
  slot->pushes.resize(plan_.groups.size());
  slot->gradients.resize(slot->batch.sparse.size());
  for (const GroupPlan& group : plan_.groups) {
    ClientCore::PreparedPush* const push = &slot->pushes[group.id];
    client_->PreparePush(group.id, GroupKeys(*slot, group.id), push);
    size_t k = 0;
    for (size_t i = 0; i < slot->batch.sparse.size(); ++i) {
      if (plan_.tables[slot->batch.sparse[i].table].group == group.id) {
        slot->gradients[i] = push->at(k++);
      }
    }
  }
}

// Start needs no message as a rule: answers to reads carry clocks. But when a range has just moved,
// the shards that answered may be behind others; so a worker that may not start asks again, with an
// empty read, as often as ticks come.
void TrainerCore::AskHowFar(absl::Time now, uint32_t group) {
  if (probe_ != 0 || now < next_probe_) return;
  next_probe_ = now + options_.client.wrong_view_pause;
  probe_ = client_->Pull(now, group, pushed_, {}, {}, kFlagEvaluate);
}

void TrainerCore::AfterCompute(absl::Time now, TrainerEffects* effects) {
  StepSlot& slot = LaneOf(step_).slot;
  ++progress_count_;
  if (!std::isfinite(slot.loss_sum)) {
    return Fail(absl::OutOfRangeError(absl::StrCat("the loss is ", slot.loss_sum, " at step ",
                                                   step_, " (epoch ", epoch_,
                                                   "): lower the learning rate or clip")));
  }
  samples_ += slot.batch.samples;
  epoch_samples_ += slot.batch.samples;
  loss_sum_ += slot.loss_sum;
  loss_samples_ += slot.batch.samples;
  if (slot.recent_auc > 0) recent_auc_ = slot.recent_auc;
  const int64_t in_flight = next_read_ - step_ + UnacknowledgedSteps();
  in_flight_.set_count(in_flight_.count() + 1);
  in_flight_.set_sum(in_flight_.sum() + static_cast<double>(in_flight));
  in_flight_.set_max(std::max(in_flight_.max(), static_cast<double>(in_flight)));
  StepTrace trace;
  trace.step = step_;
  trace.samples = slot.batch.samples;
  trace.loss_sum = slot.loss_sum;
  trace.clock_gap = step_clock_gap_;
  trace.in_flight = in_flight;
  effects->steps.push_back(trace);
  step_in_flight_ = in_flight;
  PushGradients(now, &slot);
  pushed_ = step_ + 1;
  synchronising_ = true;
  synchronised_ = DenseOnServers();
  if (synchronised_) return;
  TrainerTask task;
  task.kind = TrainerTask::Kind::kSynchronise;
  task.slot = &slot;
  effects->tasks.push_back(std::move(task));
}

void TrainerCore::PushGradients(absl::Time now, StepSlot* slot) {
  for (const GroupPlan& group : plan_.groups) {
    ClientCore::PushInfo info;
    info.group = group.id;
    info.first_step = info.step = step_;
    info.samples = static_cast<uint64_t>(slot->batch.samples);
    info.clock_gap = static_cast<int32_t>(step_clock_gap_);
    info.in_flight = static_cast<int32_t>(step_in_flight_);
    uint64_t sent = 0;
    if (slot->batch.samples == 0) {
      sent = client_->Push(now, info, {}, {});
    } else {
      ClientCore::PreparedPush* const push = &slot->pushes[group.id];
      if (DenseIn(group.id)) CutIntoBlocks(slot->dense_gradient, push->at(push->tables() - 1));
      sent = client_->Push(now, info, push);
    }
    pushes_[sent] = {step_, now};
  }
}

bool TrainerCore::AdvanceSynchronisation(absl::Time now, TrainerEffects* effects) {
  if (!synchronising_ || !synchronised_) return false;
  synchronising_ = false;
  if (!DenseOnServers() && LaneOf(step_).slot.samples_of_all == 0) epoch_ended_ = true;
  FinishStep(now, effects);
  return true;
}

void TrainerCore::FinishStep(absl::Time, TrainerEffects*) {
  Lane& lane = LaneOf(step_);
  lane.state = SlotState::kFree;
  lane.slot.step = -1;
  ++step_;
  ++progress_count_;
}

// ---- ends of epochs ---------------------------------------------------------------------------

// Of what has been read ahead for nothing.
void TrainerCore::CancelReads(Lane* lane) {
  for (const uint64_t read : lane->reads) {
    client_->Cancel(read);
    lockstep_reads_.erase(read);
  }
  lane->reads.clear();
  for (PulledRows& rows : lane->slot.rows) rows.Clear();
  lane->slot.dense_rows.Clear();
}

void TrainerCore::ResetPipeline() {
  for (Lane& lane : lanes_) {
    CancelReads(&lane);
    lane.state = SlotState::kFree;
    lane.slot.step = -1;
  }
  next_fetch_ = next_read_ = step_;
  exhausted_ = false;
}

void TrainerCore::EndEpoch() {
  TANDEM_CHECK(!fetching_);
  epoch_ended_ = false;
  ResetPipeline();
  phase_ = Phase::kDrain;
  phase_part_ = 0;
}

bool TrainerCore::LastEpoch() const {
  return epoch_ + 1 >= plan_.job.train().epochs() || common_step_ >= StepLimit();
}

int64_t TrainerCore::StepLimit() const {
  const Train& train = plan_.job.train();
  if (train.evaluate_only()) return 0;
  return train.max_steps() > 0 ? train.max_steps() : std::numeric_limits<int64_t>::max();
}

// All pushes of the epoch are acknowledged before anything else happens.
bool TrainerCore::AdvanceDrain(absl::Time) {
  if (!pushes_.empty()) return false;
  common_step_ = std::max(common_step_, step_);
  phase_part_ = 0;
  phase_ = plan_.lockstep ? Phase::kEvaluation : Phase::kEndPush;
  return true;
}

uint64_t TrainerCore::PushEmpty(absl::Time now, uint32_t group, int64_t first, int64_t step,
                                uint8_t flags) {
  ClientCore::PushInfo info;
  info.group = group;
  info.first_step = first;
  info.step = step;
  info.flags = flags;
  return client_->Push(now, info, {}, {});
}

void TrainerCore::PushEmptyAll(absl::Time now, int64_t first, int64_t step, uint8_t flags) {
  for (const GroupPlan& group : plan_.groups) {
    pushes_[PushEmpty(now, group.id, first, step, flags)] = {step, now};
  }
}

bool TrainerCore::AdvanceEndPush(absl::Time now) {
  if (phase_part_ == 0) {
    if (requested_.ready) return false;
    PushEmptyAll(now, step_, step_, kFlagEndOfEpoch);
    ++step_;
    pushed_ = step_;
    phase_part_ = 1;
    return true;
  }
  if (!pushes_.empty()) return false;
  const std::string name = absl::StrCat("epoch ", epoch_);
  if (!PassBarrier(now, name, step_)) return false;
  common_step_ = barriers_[name].max_value;
  phase_part_ = 0;
  phase_ = Phase::kCatchUp;
  return true;
}

// Everybody's clock becomes the same again, and finite; only then does anybody go on.
bool TrainerCore::AdvanceCatchUp(absl::Time now) {
  if (phase_part_ == 0) {
    if (requested_.ready) return false;
    PushEmptyAll(now, step_, common_step_, 0);
    step_ = pushed_ = common_step_ + 1;
    phase_part_ = 1;
    return true;
  }
  if (!pushes_.empty() || !PassBarrier(now, absl::StrCat("epoch ", epoch_, " caught up"), 0)) {
    return false;
  }
  phase_part_ = 0;
  phase_ = Phase::kEvaluation;
  return true;
}

bool TrainerCore::NextEpochOrEnd() {
  phase_part_ = 0;
  if (LastEpoch()) {
    phase_ = options_.save ? Phase::kSave : Phase::kEnd;
    return true;
  }
  ++epoch_;
  epoch_samples_ = 0;
  epoch_first_step_ = next_fetch_ = next_read_ = step_;
  phase_ = Phase::kTraining;
  return true;
}

// ---- evaluation -------------------------------------------------------------------------------

uint64_t TrainerCore::PullDense(absl::Time now, absl::Span<float> rows, uint8_t flags) {
  const TableKeys keys{static_cast<uint32_t>(plan_.dense_table), dense_.block_keys()};
  return client_->Pull(now, plan_.tables[static_cast<size_t>(plan_.dense_table)].group, step_,
                       {&keys, 1}, {&rows, 1}, flags | kFlagEvaluate);
}

bool TrainerCore::AdvanceEvaluation(absl::Time now, TrainerEffects* effects) {
  if (task_running_ || !reads_.empty()) return false;
  switch (static_cast<EvaluationStage>(phase_part_)) {
    case EvaluationStage::kBegin:
      return BeginEvaluation();
    case EvaluationStage::kFinishDelayed:  // what fixed delays hold back comes before the last one
      if (!PassBarrier(now, "finish_delayed", step_, BarrierEnter::FINISH_DELAYED)) return false;
      return evaluate_now_ ? EnterStage(EvaluationStage::kMeet) : NextEpochOrEnd();
    case EvaluationStage::kMeet:  // nobody reads before everybody's pushes are in
      if (!PassBarrier(now, absl::StrCat("evaluation ", evaluations_), step_)) return false;
      part_.Clear();
      first_test_batch_ = true;
      if (DenseOnServers()) reads_.insert(PullDense(now, dense_.padded(), 0));
      return EnterStage(EvaluationStage::kFetch);
    case EvaluationStage::kFetch:
      AddEvaluationTask(TrainerTask::Kind::kFetchTest, effects);
      first_test_batch_ = false;
      return EnterStage(EvaluationStage::kRead);
    case EvaluationStage::kRead:
      if (test_slot_.batch.samples == 0) {
        AddEvaluationTask(TrainerTask::Kind::kEvaluationShare, effects);
        return EnterStage(EvaluationStage::kSum);
      }
      ReadTestRows(now);
      return EnterStage(EvaluationStage::kScore);
    case EvaluationStage::kScore:
      AddEvaluationTask(TrainerTask::Kind::kForward, effects);
      ++progress_count_;
      return EnterStage(EvaluationStage::kFetch);
    case EvaluationStage::kSum:
      part_.set_evaluation(evaluations_);
      part_acknowledged_ = options_.rank == 0;
      next_part_send_ = now;
      part_pause_ = options_.control_resend;
      if (options_.rank == 0) {
        parts_[0] = part_;
        payloads_[0] = part_payload_;
      }
      return EnterStage(EvaluationStage::kGather);
    case EvaluationStage::kGather:
      return GatherShares(now, effects);
    case EvaluationStage::kMerge:
      return EndEvaluation(now);
  }
  return false;
}

bool TrainerCore::EnterStage(EvaluationStage stage) {
  phase_part_ = static_cast<int>(stage);
  return true;
}

void TrainerCore::AddEvaluationTask(TrainerTask::Kind kind, TrainerEffects* effects) {
  TrainerTask task;
  task.kind = kind;
  task.slot = &test_slot_;
  task.part = &part_;
  task.payload = &part_payload_;
  task.parts = &parts_;
  task.payloads = &payloads_;
  task.text = &text_;
  task.first = first_test_batch_;
  task_running_ = true;
  effects->tasks.push_back(std::move(task));
}

bool TrainerCore::BeginEvaluation() {
  const int every = plan_.job.evaluation().every_epochs();
  const bool due = LastEpoch() || (every > 0 && (epoch_ + 1) % every == 0);
  const bool delayed = LastEpoch() && HasDelay();
  evaluate_now_ = options_.evaluate && due;
  if (!evaluate_now_ && !delayed) return NextEpochOrEnd();
  return EnterStage(delayed ? EvaluationStage::kFinishDelayed : EvaluationStage::kMeet);
}

void TrainerCore::ReadTestRows(absl::Time now) {
  test_slot_.rows.resize(test_slot_.batch.sparse.size());
  for (size_t i = 0; i < test_slot_.batch.sparse.size(); ++i) {
    const SparseInput& input = test_slot_.batch.sparse[i];
    const TablePlan& table = plan_.tables[input.table];
    const TableKeys keys{input.table, input.keys};
    PulledRows* const rows = &test_slot_.rows[i];
    reads_.insert(
        client_->PullInPlace(now, table.group, step_, {&keys, 1}, {&rows, 1}, kFlagEvaluate));
  }
}

bool TrainerCore::GatherShares(absl::Time now, TrainerEffects* effects) {
  if (!part_acknowledged_) {
    SendEvaluationShare(now);
    return false;
  }
  if (options_.rank == 0) {
    if (static_cast<int>(parts_.size()) < plan_.workers()) return false;
    AddEvaluationTask(TrainerTask::Kind::kMergeParts, effects);
  } else {
    // Rank 0 reports with the result: what is known of the others is then of the same moment.
    SendReport(now, false);
  }
  return EnterStage(EvaluationStage::kMerge);
}

bool TrainerCore::EndEvaluation(absl::Time now) {
  if (options_.rank == 0 && !text_.empty()) {
    evaluation_json_ = text_;
    text_.clear();
    SendReport(now, false);
  }
  if (!PassBarrier(now, absl::StrCat("evaluated ", evaluations_), step_)) return false;
  ++evaluations_;
  part_payload_ = Buffer();
  // Not when an evaluation begins: parts of quick workers may come before we know that it has.
  parts_.clear();
  payloads_.clear();
  return NextEpochOrEnd();
}

bool TrainerCore::HasDelay() const {
  for (const auto& policy : policies_) {
    if (policy->properties().delay > 0) return true;
  }
  return false;
}

void TrainerCore::SendEvaluationShare(absl::Time now) {
  if (now < next_part_send_) return;
  next_part_send_ = now + part_pause_;
  part_pause_ *= 2;  // it may be large, and on its way over a link that loses nothing
  Control control;
  *control.mutable_evaluation_share() = part_;
  SendControl(EndpointId::Worker(0), control, part_payload_);
}

// ---- saving and the end -----------------------------------------------------------------------

// One save is one folder. All meet; rank 0 makes it and writes the dense part there (read back from
// the servers if it lives there); all meet again, and the scheduler has the servers write their
// ranges before it lets them go on; then rank 0 writes the manifest and makes it the latest one.
bool TrainerCore::SaveAtBarrier(absl::Time now, Save* save, TrainerEffects* effects) {
  if (save->task_running || !save->reads.empty()) return false;
  const std::string directory = SaveFolder(save->path, options_.run, save->step, save->request);
  const auto task = [&](TrainerTask::Kind kind) {
    TrainerTask t;
    t.kind = kind;
    t.text = &save->text;
    t.path = directory;
    t.step = save->step;
    save->task_running = true;
    ++save->part;
    effects->tasks.push_back(std::move(t));
  };
  // The dense part is read once all pushes are in, which nobody knows before all have met.
  save->ready = true;
  const bool last = save == &final_save_;
  if (!PassBarrier(now, absl::StrCat("ready to ", save->name), save->step,
                   last ? BarrierEnter::LAST_SAVE : BarrierEnter::NONE)) {
    return false;
  }
  if (plan_.job.dense().sharded_optimizer() && !save->gathered) {
    if (save->gathering) return false;
    save->gathering = true;
    TrainerTask gather;
    gather.kind = TrainerTask::Kind::kGatherSlots;
    effects->tasks.push_back(std::move(gather));
    return false;
  }
  const bool writer = options_.rank == 0;
  if (writer && save->part == 0) {
    save->part = 1;
    if (DenseOnServers()) {
      save->rows.resize(dense_.block_keys().size() * static_cast<size_t>(dense_.row_floats()));
      save->reads.insert(PullDense(now, absl::MakeSpan(save->rows), kFlagWithSlots));
      return false;
    }
  }
  if (writer && save->part == 1) {
    save->text = DenseFile(*save);
    task(TrainerTask::Kind::kSaveDense);
    return false;
  }
  if (!PassBarrier(now, save->name, save->step, BarrierEnter::SAVE, directory)) return false;
  if (writer && save->part == 2) {
    task(TrainerTask::Kind::kCommitSave);
    return false;
  }
  *save = Save();
  return true;
}

// Not by way of dense_ if the parameters live on servers: an evaluation may be using it.
std::string TrainerCore::DenseFile(const Save& save) {
  if (!DenseOnServers()) return dense_.EncodeFile();
  absl::StatusOr<std::unique_ptr<DenseParameters>> copy =
      DenseParameters::New(plan_.job.dense().optimizer(), dense_.count());
  const absl::Status set = copy.ok() ? (*copy)->SetRowsWithSlots(save.rows) : copy.status();
  if (!set.ok()) {
    Fail(set);
    return "";
  }
  return (*copy)->EncodeFile();
}

// No step begins that the save must not see.
bool TrainerCore::HeldForSave() const {
  if (requested_.name.empty()) return false;
  return requested_.step < 0 ? step_ >= save_value_ : step_ >= requested_.step;
}

// Runs beside the phases: barriers, evaluations and the end of an epoch may come in between, since
// workers learn of a save at different times. From the moment a worker is ready until the save is
// done it pushes nothing, so what is saved is of one moment.
bool TrainerCore::AdvanceRequestedSave(absl::Time now, TrainerEffects* effects) {
  if (requested_.name.empty() || phase_ < Phase::kTraining) return false;
  if (requested_.step < 0) {
    if (!PassBarrier(now, plan_barrier_, save_value_)) return false;
    requested_.step = barriers_[plan_barrier_].max_value;
    return true;
  }
  // At the end of its data a worker waits for nobody, and nobody for its steps. In a lockstep job
  // there is no such end: all take every step, those without data too.
  const bool at_end = !plan_.lockstep &&
                      (phase_ > Phase::kEndPush || (phase_ == Phase::kEndPush && phase_part_ > 0));
  if (!at_end && step_ < requested_.step) return false;
  if (!requested_.ready && (synchronising_ || !pushes_.empty())) return false;
  if (!SaveAtBarrier(now, &requested_, effects)) return false;
  SendDone(EndpointId::Scheduler(), save_command_);
  return true;
}

bool TrainerCore::AdvanceSave(absl::Time now, TrainerEffects* effects) {
  final_save_.name = "save";
  final_save_.path = options_.save_path;
  final_save_.step = step_;
  if (!SaveAtBarrier(now, &final_save_, effects)) return false;
  phase_ = Phase::kEnd;
  return true;
}

bool TrainerCore::AdvanceEnd(absl::Time now) {
  if (phase_part_ == 0) {
    SendReport(now, true);
    phase_part_ = 1;
  }
  PassBarrier(now, "end", step_, BarrierEnter::END);
  return false;  // STOP ends it
}

// ---- reporting --------------------------------------------------------------------------------

void TrainerCore::SendReport(absl::Time, bool done) {
  Control control;
  Progress& p = *control.mutable_progress();
  p.set_epoch(epoch_);
  p.set_step(step_);
  p.set_samples(samples_);
  p.set_loss_sum(loss_sum_);
  p.set_loss_samples(loss_samples_);
  loss_sum_ = 0;
  loss_samples_ = 0;
  if (options_.estimated_rows > 0) {
    p.set_epoch_fraction(std::min(
        1.0, static_cast<double>(epoch_samples_) / static_cast<double>(options_.estimated_rows)));
  }
  p.set_auc(recent_auc_);
  p.set_done(done);
  const ClientCore::Counters& c = client_->counters();
  auto& bytes = *p.mutable_bytes();
  bytes["pull"] = c.pull_bytes;
  bytes["rows"] = c.rows_bytes;
  bytes["push"] = c.push_bytes;
  bytes["ack"] = c.ack_bytes;
  bytes["collective"] = collective_bytes_;
  *p.mutable_in_flight_depth() = in_flight_;
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    (*p.mutable_updates_sent())[plan_.tables[t].name] = client_->updates_sent()[t];
  }
  p.set_evaluation_json(evaluation_json_);
  evaluation_json_.clear();
  SendControl(EndpointId::Scheduler(), control);
}

Activity TrainerCore::Doing(absl::Time now, const Activity& synchroniser) const {
  for (const auto& [name, barrier] : barriers_) {
    if (!barrier.released) return {absl::StrCat("at barrier ", name), {}};
  }
  if (phase_ == Phase::kTraining) {
    const Lane& lane = LaneOf(step_);
    if (synchronising_ && !DenseOnServers()) {
      return {absl::StrCat("allreduce of step ", step_, synchroniser.text.empty() ? "" : ": ",
                           synchroniser.text),
              synchroniser.waits_for};
    }
    if (lane.state == SlotState::kComputing) return {absl::StrCat("computing step ", step_), {}};
    if (lane.state == SlotState::kFetching)
      return {absl::StrCat("reading data of step ", step_), {}};
  }
  Activity waiting = client_->Waiting(now);
  if (waiting.text.empty()) waiting.text = absl::StrCat("step ", step_);
  return waiting;
}

}  // namespace tandem
