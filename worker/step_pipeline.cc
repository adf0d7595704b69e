#include "worker/step_pipeline.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/diverged.h"
#include "base/hash.h"

namespace tandem::worker {
namespace {

// The samples of a batch with label 1. Only the program knows the labels of its own batches.
uint64_t PositivesOf(const data::Batch& batch) {
  if (batch.labels.size() != static_cast<size_t>(batch.samples)) return policies::kUnknownPositives;
  return static_cast<uint64_t>(std::count(batch.labels.begin(), batch.labels.end(), 1.0f));
}

}  // namespace

// The gate of StepOrder::Next.
struct StepPipeline::Gate {
  int64_t pushes() const { return pipeline.context_.pushes.Steps(); }
  void AwaitPush() const {}
  int groups() const { return static_cast<int>(trained.size()); }
  uint32_t id(int group) const { return trained[static_cast<size_t>(group)].id; }
  const policies::UpdatePolicy& policy(int group) const {
    return *pipeline.context_.policies[id(group)];
  }
  int64_t told(int group) const { return pipeline.context_.client.largest_min_clock(id(group)); }
  void Refused(int group) const { pipeline.AskHowFar(now, id(group)); }

  StepPipeline& pipeline;
  const absl::Time now;
  const absl::Span<const job::GroupPlan> trained = pipeline.context_.plan.trained_groups();
};

StepPipeline::StepPipeline(TrainerContext& context, DenseSynchroniser& synchroniser,
                           const DenseParameters& dense, absl::Duration probe_pause)
    : context_(context),
      order_(context.order),
      synchroniser_(synchroniser),
      probe_pause_(probe_pause),
      slots_(static_cast<size_t>(order_.slots())) {
  const size_t padded = static_cast<size_t>(dense.blocks()) * job::kDenseBlockFloats;
  for (Slot& entry : slots_) entry.slot.dense_gradient.assign(padded + 1, 0.0f);
}

void StepPipeline::BeginAt(int64_t first_step, int64_t first_trained) {
  order_.Begin({first_step, context_.StepLimit(), first_trained, synchroniser_.SyncsAtEnd()});
  context_.epoch_rows = 0;
  context_.place.reset();
}

void StepPipeline::Begin() { BeginAt(context_.step(), 0); }

void StepPipeline::Resume(const TrainPosition& start, int64_t first_trained) {
  BeginAt(start.first_step(), first_trained);
  context_.epoch_rows = start.rows();
  if (start.has_place()) context_.place = start.place();
}

bool StepPipeline::Advance(absl::Time now, int64_t hold_from, TrainerEffects* effects) {
  switch (order_.Next(hold_from, Gate{*this, now})) {
    case StepOrder::Act::kNothing:
      return false;
    case StepOrder::Act::kPush:
      AfterCompute(now, effects);
      break;
    case StepOrder::Act::kDrop:
      DropBatch();
      break;
    case StepOrder::Act::kEnd:
      // Later steps do not use their prefetched rows any more.
      for (Slot& entry : slots_) CancelReads(&entry);
      order_.End();
      break;
    case StepOrder::Act::kSkip:
      Skip(now, order_.skips_to(hold_from), effects);
      break;
    case StepOrder::Act::kFetch:
      StartFetch(effects);
      break;
    case StepOrder::Act::kRead:
      StartReads(now);
      break;
    case StepOrder::Act::kStart:
      StartCompute(now, effects);
      break;
    case StepOrder::Act::kFinish:
      FinishStep();
      break;
  }
  return true;
}

void StepPipeline::CancelReads(Slot* entry) {
  for (const Read& read : entry->reads) context_.client.Cancel(read.request);
  entry->reads.clear();
  for (client::PulledRows& rows : entry->slot.rows) rows.Clear();
  entry->slot.dense_rows.Clear();
}

// The dead process pushed this step to all ranges, so this process passes over its rows.
// The counts of the dead process end before the first of these steps (WorkerStart.position), so
// this process counts them.
void StepPipeline::DropBatch() {
  const StepSlot& slot = SlotOf(context_.step()).slot;
  CountUpdatesOf(slot);
  context_.report.AddTrainedBefore(slot);
  context_.epoch_rows += slot.batch.samples;
  if (slot.place.has_value()) context_.place = slot.place;
  order_.Drop();
  ++context_.progress;
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
// step that is open now. An empty push covers the steps between.
//
// The synchroniser is told of the skipped steps as after a step. Other workers may wait for those
// steps, and this worker may be about to stop for a checkpoint, which they can reach only after the
// steps.
void StepPipeline::Skip(absl::Time now, int64_t to, TrainerEffects* effects) {
  const int64_t from = context_.step();
  context_.PushEmptyToAll(now, from, to - 1, 0);
  order_.Skip(to);
  for (int64_t step = to; step < order_.next_fetch(); ++step) {
    Slot& entry = SlotOf(step);
    CancelReads(&entry);
    entry.slot.step = step;
    if (!order_.has_samples(step)) entry.slot.batch.Clear();
  }
  ++context_.progress;
  left_out_.step = to - 1;
  if (synchroniser_.AfterCompute(&left_out_, effects)) order_.AwaitSkipped();
}

// ---- data and rows ----------------------------------------------------------------------------

void StepPipeline::StartFetch(TrainerEffects* effects) {
  StepSlot& slot = SlotOf(order_.next_fetch()).slot;
  slot.step = order_.next_fetch();
  slot.epoch = context_.epoch;
  if (order_.BeginFetch()) {
    effects->tasks.push_back(FetchTask{&slot});
  } else {
    slot.batch.Clear();
  }
}

void StepPipeline::OnTaskDone(const FetchTask& task) {
  order_.OnFetched(task.slot->batch.samples > 0);
  // A resumed run with more steps trains on in an epoch that had ended.
  if (task.slot->batch.samples > 0) context_.ended_at = 0;
}

void StepPipeline::StartReads(absl::Time now) {
  Slot& entry = SlotOf(order_.next_read());
  order_.BeginRead();
  entry.read_since = now;
  entry.slot.rows.resize(entry.slot.batch.sparse.size());
  for (const job::GroupPlan& group : context_.plan.trained_groups()) ReadGroup(now, group, &entry);
}

void StepPipeline::ReadGroup(absl::Time now, const job::GroupPlan& group, Slot* entry) {
  StepSlot& slot = entry->slot;
  FindKeys(slot, group.id);
  rows_.clear();
  for (const size_t input : inputs_) rows_.push_back(&slot.rows[input]);
  if (rows_.size() < keys_.size()) rows_.push_back(&slot.dense_rows);
  Read read;
  read.request = context_.client.PullInPlace(now, group.id, slot.step, keys_, rows_, 0);
  read.tells_end = order_.MayTellEnd(slot.step) && !synchroniser_.TellsSamples() &&
                   context_.policies[group.id]->properties().lockstep;
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
    // A step without samples of any worker just closed, so the epoch is over.
    if (it->tells_end && completion.closed_samples == 0) {
      order_.OnEmptyStep();
      context_.empty_steps = synchroniser_.SyncsAtEnd() ? 2 : 1;
    }
    entry.reads.erase(it);
    if (!entry.reads.empty()) return true;
    order_.OnRows(static_cast<int>(&entry - slots_.data()));
    synchroniser_.OnRows(&entry.slot);
    effects->transfers.push_back({false, entry.slot.step, entry.read_since, now});
    return true;
  }
  return false;
}

// ---- computing --------------------------------------------------------------------------------

void StepPipeline::StartCompute(absl::Time now, TrainerEffects* effects) {
  StepSlot& slot = SlotOf(context_.step()).slot;
  order_.Start();
  slot.loss_sum = slot.interval_auc = 0;
  slot.skipped = false;
  slot.sample_clock = context_.SampleClock();
  slot.computed = slot.slept = slot.joined = absl::ZeroDuration();
  slot.last = order_.last();
  if (slot.batch.samples == 0) {
    std::fill(slot.dense_gradient.begin(), slot.dense_gradient.end(), 0.0f);
    AfterCompute(now, effects);
  } else {
    slot.begins_interval = context_.report.TakeIntervalBegins();
    PreparePushes(&slot);
    effects->tasks.push_back(ComputeTask{&slot});
  }
}

// As a rule a start needs no message, because answers to pulls carry clocks. But after a range has
// moved, the shards that answered may know older clocks than other shards. A worker that may not
// start therefore asks again with an empty pull, at most once in `probe_pause_`.
void StepPipeline::AskHowFar(absl::Time now, uint32_t group) {
  if (probe_ != 0 || now < next_probe_) return;
  next_probe_ = now + probe_pause_;
  probe_ = context_.client.Pull(now, group, order_.pushed(), {}, {}, kFlagEvaluate);
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

void StepPipeline::AfterCompute(absl::Time now, TrainerEffects* effects) {
  // A loss that is not finite ends the job before its gradient leaves this worker. The push and the
  // synchroniser's task start together, so that both travel at the same time.
  StepSlot& slot = SlotOf(context_.step()).slot;
  ++context_.progress;
  if (!std::isfinite(slot.loss_sum)) {
    order_.Withhold();
    return context_.Fail(DivergedError(absl::StrCat("the loss is ", slot.loss_sum, " at step ",
                                                    context_.step(), " (epoch ", context_.epoch,
                                                    "): lower the learning rate or clip")));
  }
  const int64_t in_flight = order_.InFlight(context_.pushes.Steps());
  context_.report.AddStep(slot, in_flight);
  context_.epoch_rows += slot.batch.samples;
  if (slot.batch.samples > 0 && slot.place.has_value()) context_.place = slot.place;
  effects->steps.push_back(
      {context_.step(), slot.samples(), slot.loss_sum, order_.clock_gap(), in_flight});
  Push(now, in_flight, &slot);
  order_.Pushed(synchroniser_.AfterCompute(&slot, effects));
}

void StepPipeline::Push(absl::Time now, int64_t in_flight, StepSlot* slot) {
  const uint64_t positives = PositivesOf(slot->batch);
  for (const job::GroupPlan& group : context_.plan.trained_groups()) {
    client::ClientCore::PushInfo info;
    info.group = group.id;
    info.first_step = info.step = context_.step();
    info.samples = static_cast<uint64_t>(slot->samples());
    info.sample_clock = slot->sample_clock;
    info.positives = positives;
    info.clock_gap = static_cast<int32_t>(order_.clock_gap());
    info.in_flight = static_cast<int32_t>(in_flight);
    uint64_t sent = 0;
    if (slot->skipped) info.flags = kFlagSkipped;
    if (slot->samples() == 0) {
      sent = context_.client.Push(now, info, {}, {});
    } else {
      synchroniser_.WriteGradient(group.id, slot);
      sent = context_.client.Push(now, info, &slot->pushes[group.id]);
    }
    context_.pushes.Add(sent, context_.step(), now);
  }
}

void StepPipeline::OnTaskDone(const SynchroniseTask& task) {
  order_.OnSynchronised();
  context_.report.AddCollectiveBytes(task.slot->bytes_sent);
  context_.report.AddMissedSums(task.slot->missed);
  ++context_.progress;
}

void StepPipeline::FinishStep() {
  const bool skipping = order_.skipping();
  const StepSlot& slot = SlotOf(context_.step()).slot;
  const bool empty = !skipping && synchroniser_.TellsSamples() && slot.samples_of_all == 0;
  if (empty) context_.empty_steps = slot.empty_steps;
  if (!skipping) ++context_.progress;
  order_.Finish(empty);
}

// ---- for others -------------------------------------------------------------------------------

Activity StepPipeline::Doing(const Activity& synchroniser) const {
  const StepOrder::State state = order_.state(context_.step());
  if (order_.synchronising() && !order_.synchronised()) {
    const int64_t step = context_.step() - (order_.skipping() ? 1 : 0);
    return {absl::StrCat("allreduce of step ", step, synchroniser.text.empty() ? "" : ": ",
                         synchroniser.text),
            synchroniser.waits_for};
  }
  if (state == StepOrder::State::kComputing)
    return {absl::StrCat("computing step ", context_.step()), {}};
  if (state == StepOrder::State::kFetching) {
    return {absl::StrCat("reading data of step ", context_.step()), {}};
  }
  return {};
}

}  // namespace tandem::worker
