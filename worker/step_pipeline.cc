#include "worker/step_pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/diverged.h"
#include "base/hash.h"

namespace tandem::worker {

StepPipeline::StepPipeline(TrainerContext& context, DenseSynchroniser& synchroniser,
                           const DenseParameters& dense, absl::Duration probe_pause)
    : context_(context),
      synchroniser_(synchroniser),
      probe_pause_(probe_pause),
      depth_(context.plan.job.train().prefetch_steps()),
      slots_(static_cast<size_t>(depth_) + 2) {
  const size_t padded = static_cast<size_t>(dense.blocks()) * job::kDenseBlockFloats;
  for (Slot& entry : slots_) entry.slot.dense_gradient.assign(padded + 1, 0.0f);
}

void StepPipeline::Begin() {
  over_ = false;
  first_step_ = next_fetch_ = next_read_ = context_.step;
  context_.epoch_rows = 0;
  context_.place.reset();
}

void StepPipeline::Resume(const TrainPosition& start, int64_t first_trained) {
  Begin();
  first_trained_ = first_trained;
  next_read_ = std::max(next_read_, first_trained);
  first_step_ = start.first_step();
  context_.epoch_rows = start.rows();
  if (start.has_place()) context_.place = start.place();
}

bool StepPipeline::Advance(absl::Time now, int64_t hold_from, TrainerEffects* effects) {
  if (computed_ && context_.step < hold_from) {
    computed_ = false;
    AfterCompute(now, effects);
    return true;
  }
  if (DropBatch()) return true;
  // The end of the epoch goes first: after an empty step nothing more may be fetched or read.
  if (empty_step_ && !syncs_at_end()) {
    End();
    return true;
  }
  // Skip before anything else begins: the fetched batches get new step numbers, and their rows must
  // be read for these.
  if (SkipToOpenStep(now, hold_from, effects)) return true;
  // Start fetches and pulls of later steps before the compute task, so that data and rows travel
  // while the current step is computed.
  const bool fetched = StartFetch(effects);
  const bool read = StartReads(now);
  const bool may_begin = context_.step < hold_from;
  return (may_begin && StartCompute(now, effects)) || FinishStep() || fetched || read;
}

// Ends the epoch. Rows that were prefetched for later steps are not used any more.
void StepPipeline::End() {
  TANDEM_CHECK(!fetching_);
  for (Slot& entry : slots_) {
    CancelReads(&entry);
    entry.state = SlotState::kFree;
    entry.slot.step = -1;
  }
  next_fetch_ = next_read_ = context_.step;
  exhausted_ = false;
  empty_step_ = synced_at_end_ = false;
  over_ = true;
}

void StepPipeline::CancelReads(Slot* entry) {
  for (const Read& read : entry->reads) context_.client.Cancel(read.request);
  entry->reads.clear();
  for (client::PulledRows& rows : entry->slot.rows) rows.Clear();
  entry->slot.dense_rows.Clear();
}

// The dead process has pushed this step to all ranges, so its rows are read only to pass over them.
// The counts of the dead process end before the first of these steps (WorkerStart.position), so
// this process counts them.
bool StepPipeline::DropBatch() {
  if (context_.step >= first_trained_) return false;
  Slot& entry = SlotOf(context_.step);
  const StepSlot& slot = entry.slot;
  // Without rows the epoch ends, as usual: the dead process may have told some ranges so.
  if (entry.state != SlotState::kFetched || slot.step != context_.step) return false;
  if (slot.batch.samples == 0) return false;
  CountUpdatesOf(slot);
  context_.report.AddTrainedBefore(slot);
  context_.epoch_rows += slot.batch.samples;
  if (slot.place.has_value()) context_.place = slot.place;
  entry.state = SlotState::kFree;
  entry.slot.step = -1;
  context_.pushed = ++context_.step;
  ++context_.progress;
  return true;
}

// An update counts once for each range in which it has rows.
void StepPipeline::CountUpdatesOf(const StepSlot& slot) {
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    FindKeys(slot, group.id);
    for (const client::TableKeys& keys : keys_) {
      ranges_.clear();
      for (const uint64_t key : keys.keys) {
        const uint64_t position = Position(context_.plan.tables[keys.table].salt, key);
        ranges_.push_back(context_.map->Find(keys.table, position));
      }
      std::sort(ranges_.begin(), ranges_.end());
      const auto end = std::unique(ranges_.begin(), ranges_.end());
      context_.report.AddSentBefore(keys.table, static_cast<uint64_t>(end - ranges_.begin()));
    }
  }
}

// A push of this worker came too late somewhere and was dropped there. The worker continues at the
// step that is open now. An empty push covers the steps between, and the batches fetched ahead now
// belong to later steps, whose rows are pulled anew. The worker never skips the step of an agreed
// checkpoint (`hold_from`).
//
// The synchroniser is told of the skipped steps as after a step. Other workers may wait for those
// steps, and this worker may be about to stop for a checkpoint, which they can reach only after the
// steps.
bool StepPipeline::SkipToOpenStep(absl::Time now, int64_t hold_from, TrainerEffects* effects) {
  const int64_t to = std::min(open_step_, hold_from);
  if (to <= context_.step || fetching_ || step_begun()) return false;
  context_.PushEmptyToAll(now, context_.step, to - 1, 0);
  const int64_t skipped = to - context_.step;
  for (Slot& entry : slots_) {
    if (entry.slot.step < 0) continue;
    CancelReads(&entry);
    entry.state = SlotState::kFetched;
    entry.slot.step += skipped;
    if (entry.slot.step >= context_.StepLimit()) entry.slot.batch.Clear();
  }
  skipped_ += skipped;
  next_fetch_ += skipped;
  context_.step = context_.pushed = next_read_ = to;
  ++context_.progress;
  left_out_.step = to - 1;
  synchronising_ = skipping_ = synchroniser_.AfterCompute(&left_out_, effects);
  synchronised_ = false;
  return true;
}

// ---- data and rows ----------------------------------------------------------------------------

bool StepPipeline::StartFetch(TrainerEffects* effects) {
  if (fetching_ || next_fetch_ > context_.step + depth_ + 1) return false;
  Slot& entry = SlotOf(next_fetch_);
  if (entry.state != SlotState::kFree) return false;
  entry.slot.step = next_fetch_;
  entry.slot.epoch = context_.epoch;
  if (next_fetch_ >= context_.StepLimit()) exhausted_ = true;
  if (exhausted_) {
    entry.slot.batch.Clear();
    entry.state = SlotState::kFetched;
  } else {
    entry.state = SlotState::kFetching;
    fetching_ = true;
    effects->tasks.push_back(FetchTask{&entry.slot});
  }
  ++next_fetch_;
  return true;
}

void StepPipeline::OnTaskDone(const FetchTask& task) {
  fetching_ = false;
  SlotOf(task.slot->step).state = SlotState::kFetched;
  if (task.slot->batch.samples == 0) {
    exhausted_ = true;
  } else {
    context_.ended_at = 0;  // a resumed run with more steps trains on in an epoch that had ended
  }
}

bool StepPipeline::StartReads(absl::Time now) {
  if (next_read_ >= next_fetch_ || next_read_ > context_.pushed + depth_) return false;
  Slot& entry = SlotOf(next_read_);
  if (entry.state != SlotState::kFetched) return false;
  // Out of data: lockstep jobs continue with empty steps; in other jobs the epoch ends here.
  if (entry.slot.batch.samples == 0 && !context_.plan.lockstep) return false;
  entry.state = SlotState::kReading;
  entry.read_since = now;
  entry.slot.rows.resize(entry.slot.batch.sparse.size());
  for (const job::GroupPlan& group : context_.plan.trained_groups()) ReadGroup(now, group, &entry);
  ++next_read_;
  return true;
}

void StepPipeline::ReadGroup(absl::Time now, const job::GroupPlan& group, Slot* entry) {
  StepSlot& slot = entry->slot;
  FindKeys(slot, group.id);
  rows_.clear();
  for (const size_t input : inputs_) rows_.push_back(&slot.rows[input]);
  if (rows_.size() < keys_.size()) rows_.push_back(&slot.dense_rows);
  Read read;
  read.request = context_.client.PullInPlace(now, group.id, slot.step, keys_, rows_, 0);
  read.tells_end = context_.plan.lockstep && !synchroniser_.TellsSamples() &&
                   context_.policies[group.id]->properties().lockstep && slot.step > first_step_;
  entry->reads.push_back(read);
}

// Fills keys_ and inputs_: the sparse inputs of a group in their order, then the dense blocks if
// the group contains them.
void StepPipeline::FindKeys(const StepSlot& slot, uint32_t group) {
  keys_.clear();
  inputs_.clear();
  for (size_t i = 0; i < slot.batch.sparse.size(); ++i) {
    const data::SparseInput& input = slot.batch.sparse[i];
    if (context_.plan.tables[input.table].group != group) continue;
    keys_.push_back({input.table, input.keys});
    inputs_.push_back(i);
  }
  const absl::Span<const uint64_t> blocks = synchroniser_.BlocksIn(group);
  if (blocks.empty() || slot.batch.samples == 0) return;
  keys_.push_back({static_cast<uint32_t>(context_.plan.dense_table), blocks});
}

bool StepPipeline::OnCompletion(absl::Time now, const client::ClientCore::Completion& completion,
                                TrainerEffects* effects) {
  if (completion.request == probe_) {
    probe_ = 0;
    return true;
  }
  for (Slot& entry : slots_) {
    const auto it = std::find_if(entry.reads.begin(), entry.reads.end(), [&](const Read& read) {
      return read.request == completion.request;
    });
    if (it == entry.reads.end()) continue;
    // A step without samples of any worker has just closed, so the epoch is over.
    if (it->tells_end && completion.closed_samples == 0) {
      empty_step_ = true;
      context_.empty_steps = synchroniser_.SyncsAtEnd() ? 2 : 1;
    }
    entry.reads.erase(it);
    if (!entry.reads.empty()) return true;
    entry.state = SlotState::kReady;
    synchroniser_.OnRows(&entry.slot);
    effects->transfers.push_back({false, entry.slot.step, entry.read_since, now});
    return true;
  }
  return false;
}

// ---- computing --------------------------------------------------------------------------------

bool StepPipeline::StartCompute(absl::Time now, TrainerEffects* effects) {
  Slot& entry = SlotOf(context_.step);
  // A step starts only when the previous one is synchronised, because the model needs the new dense
  // parameters. Policies are asked last: a refusal sends a probe.
  StepSlot& slot = entry.slot;
  if (synchronising_ || slot.step != context_.step) return false;
  const bool out_of_data = slot.batch.samples == 0;
  if (out_of_data && !context_.plan.lockstep && entry.state == SlotState::kFetched) {
    End();
    return true;
  }
  if (entry.state != SlotState::kReady || !MayStart(now)) return false;
  entry.state = SlotState::kComputing;
  clock_gap_ = ClockGap();
  slot.loss_sum = slot.interval_auc = 0;
  slot.skipped = false;
  slot.computed = slot.slept = slot.joined = absl::ZeroDuration();
  slot.last = empty_step_;
  if (out_of_data) {
    std::fill(slot.dense_gradient.begin(), slot.dense_gradient.end(), 0.0f);
    AfterCompute(now, effects);
  } else {
    slot.begins_interval = context_.report.TakeIntervalBegins();
    PreparePushes(&slot);
    effects->tasks.push_back(ComputeTask{&slot});
  }
  return true;
}

bool StepPipeline::MayStart(absl::Time now) {
  if (context_.pushes.Steps() >= context_.plan.job.train().max_inflight_pushes()) return false;
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    if (context_.policies[group.id]->MayStart(context_.step,
                                              context_.client.largest_min_clock(group.id))) {
      continue;
    }
    AskHowFar(now, group.id);
    return false;
  }
  return true;
}

// As a rule a start needs no message, because answers to pulls carry clocks. But after a range has
// moved, the shards that answered may know older clocks than other shards. A worker that may not
// start therefore asks again with an empty pull, at most once in `probe_pause_`.
void StepPipeline::AskHowFar(absl::Time now, uint32_t group) {
  if (probe_ != 0 || now < next_probe_) return;
  next_probe_ = now + probe_pause_;
  probe_ = context_.client.Pull(now, group, context_.pushed, {}, {}, kFlagEvaluate);
}

int64_t StepPipeline::ClockGap() const {
  int64_t gap = 0;
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    gap = std::max(gap, context_.step - context_.client.largest_min_clock(group.id));
  }
  return gap;
}

void StepPipeline::PreparePushes(StepSlot* slot) {
  slot->pushes.resize(context_.plan.trained_groups().size());
  slot->gradients.resize(slot->batch.sparse.size());
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    client::ClientCore::PreparedPush* const push = &slot->pushes[group.id];
    FindKeys(*slot, group.id);
    context_.client.PreparePush(group.id, keys_, push);
    for (size_t k = 0; k < inputs_.size(); ++k) slot->gradients[inputs_[k]] = push->at(k);
  }
}

// A step that was taken back does not count.
void StepPipeline::OnTaskDone(const ComputeTask&) { computed_ = computing(); }

void StepPipeline::AfterCompute(absl::Time now, TrainerEffects* effects) {
  // A loss that is not finite ends the job before its gradient leaves this worker. The push and the
  // synchroniser's task start together, so that both travel at the same time.
  StepSlot& slot = SlotOf(context_.step).slot;
  ++context_.progress;
  if (!std::isfinite(slot.loss_sum)) {
    return context_.Fail(DivergedError(absl::StrCat("the loss is ", slot.loss_sum, " at step ",
                                                    context_.step, " (epoch ", context_.epoch,
                                                    "): lower the learning rate or clip")));
  }
  const int64_t in_flight = next_read_ - context_.step + context_.pushes.Steps();
  context_.report.AddStep(slot, in_flight);
  context_.epoch_rows += slot.batch.samples;
  if (slot.batch.samples > 0 && slot.place.has_value()) context_.place = slot.place;
  effects->steps.push_back({context_.step, slot.samples(), slot.loss_sum, clock_gap_, in_flight});
  Push(now, in_flight, &slot);
  synchronising_ = true;
  synchronised_ = !synchroniser_.AfterCompute(&slot, effects);
}

void StepPipeline::Push(absl::Time now, int64_t in_flight, StepSlot* slot) {
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    client::ClientCore::PushInfo info;
    info.group = group.id;
    info.first_step = info.step = context_.step;
    info.samples = static_cast<uint64_t>(slot->samples());
    info.clock_gap = static_cast<int32_t>(clock_gap_);
    info.in_flight = static_cast<int32_t>(in_flight);
    uint64_t sent = 0;
    if (slot->skipped) info.flags = kFlagSkipped;
    if (slot->samples() == 0) {
      sent = context_.client.Push(now, info, {}, {});
    } else {
      synchroniser_.WriteGradient(group.id, slot);
      sent = context_.client.Push(now, info, &slot->pushes[group.id]);
    }
    context_.pushes.Add(sent, context_.step, now);
  }
  context_.pushed = context_.step + 1;
}

void StepPipeline::OnTaskDone(const SynchroniseTask& task) {
  synchronised_ = true;
  context_.report.AddCollectiveBytes(task.slot->bytes_sent);
  context_.report.AddMissedSums(task.slot->missed);
  ++context_.progress;
}

bool StepPipeline::FinishStep() {
  if (!synchronising_ || !synchronised_) return false;
  synchronising_ = false;
  // context_.step is the open step already.
  if (std::exchange(skipping_, false)) return true;
  Slot& entry = SlotOf(context_.step);
  if (synchroniser_.TellsSamples() && entry.slot.samples_of_all == 0) {
    empty_step_ = true;
    context_.empty_steps = entry.slot.empty_steps;
  }
  synced_at_end_ = entry.slot.last;
  entry.state = SlotState::kFree;
  entry.slot.step = -1;
  ++context_.step;
  ++context_.progress;
  return true;
}

// ---- for others -------------------------------------------------------------------------------

bool StepPipeline::computing() const {
  return !over_ && !synchronising_ && SlotOf(context_.step).state == SlotState::kComputing;
}

bool StepPipeline::step_begun() const { return computing() || (!over_ && synchronising_); }

void StepPipeline::TakeBack() { SlotOf(context_.step).state = SlotState::kReady; }

Activity StepPipeline::Doing(const Activity& synchroniser) const {
  const SlotState state = SlotOf(context_.step).state;
  if (synchronising_ && !synchronised_) {
    const int64_t step = context_.step - (skipping_ ? 1 : 0);
    return {absl::StrCat("allreduce of step ", step, synchroniser.text.empty() ? "" : ": ",
                         synchroniser.text),
            synchroniser.waits_for};
  }
  if (state == SlotState::kComputing) return {absl::StrCat("computing step ", context_.step), {}};
  if (state == SlotState::kFetching) {
    return {absl::StrCat("reading data of step ", context_.step), {}};
  }
  return {};
}

}  // namespace tandem::worker
