#include "server/shard_core.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/memory_full.h"
#include "base/status_macros.h"
#include "job/job_budget.h"
#include "optim/row_rounding.h"
#include "server/store_answer.h"

namespace tandem::server {
namespace {

// Fills the report of a table, or of one worker. Both messages have the same fields.
template <typename Message>
void FillUpdates(const UpdateStats& stats, Message* out) {
  out->set_sent(stats.arrived);
  out->set_applied(stats.applied);
  out->set_merged(stats.merged);
  out->set_dropped(stats.dropped);
  FillSamples(stats.samples, out->mutable_samples());
  FillDistribution(stats.clock_gap, out->mutable_clock_gap());
  FillDistribution(stats.version_staleness, out->mutable_version_staleness());
  FillDistribution(stats.age, out->mutable_age());
  FillDistribution(stats.row_staleness, out->mutable_row_staleness());
}

// Fills all fields but the candidates, which Report counts in the ranges.
void FillRowCounts(const RowCounts& counts, RowReport* out) {
  out->set_looked_up(counts.looked_up);
  out->set_found(counts.found);
  out->set_admitted(counts.admitted);
  out->set_evicted(counts.evicted);
  out->set_refused(counts.refused);
  out->set_to_fresh_rows(counts.to_fresh_rows);
  out->set_sampled(counts.sampled);
  out->set_came_back(counts.came_back);
}

template <typename Record>
void Append(std::vector<Record>* from, std::vector<Record>* to) {
  to->insert(to->end(), from->begin(), from->end());
  from->clear();
}

void AppendUnsettled(const std::vector<Slice>& slices, std::vector<uint32_t>* ranges) {
  for (const Slice& slice : slices) {
    if (!slice.settled) ranges->push_back(slice.entry.range);
  }
}

// Pulls the rows of one slice as they travel, `words` words each. Sets `as_floats` to the rows as
// floats, [keys, dim]. Returns how many keys had no row.
size_t PullSlice(const Range& range, absl::Span<const uint64_t> keys, size_t words,
                 absl::Span<float> rows, std::vector<float>* scratch,
                 absl::Span<const float>* as_floats) {
  const Table::Dtype type = range.table().plan->wire_dtype();
  *as_floats = rows;
  if (optim::ElementBytes(type) == sizeof(float)) return range.store().Pull(keys, rows);
  const size_t absent = range.store().PullStored(keys, words, rows);
  const auto dim = static_cast<size_t>(range.store().dim());
  scratch->resize(keys.size() * dim);
  optim::ExpandWireRows(type, dim, keys.size(), rows.data(), scratch->data());
  *as_floats = *scratch;
  return absent;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardCore>> ShardCore::New(const job::ResolvedJob& plan,
                                                          EndpointId self, uint64_t incarnation,
                                                          BufferSource& buffers,
                                                          std::unique_ptr<TurnOrder> turns,
                                                          MemoryBudget* budget) {
  std::unique_ptr<ShardCore> core(
      new ShardCore(plan, self, incarnation, buffers, std::move(turns), budget));
  TANDEM_RETURN_IF_ERROR(core->Init());
  return core;
}

ShardCore::ShardCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
                     BufferSource& buffers, std::unique_ptr<TurnOrder> turns, MemoryBudget* budget)
    : plan_(plan),
      self_(self),
      buffers_(buffers),
      budget_(budget),
      arena_(budget),
      turns_(std::move(turns)),
      ranges_(self, incarnation, tables_, buffers, peer_log_),
      waiting_reads_(plan.workers()),
      early_(plan.workers()),
      waits_(plan.workers(), plan.CountsWaitsInPairs()),
      held_(budget),
      told_of_memory_(budget == nullptr || plan.job.train().evaluate_only()) {}

absl::Status ShardCore::Init() {
  if (!plan_.CountsPairs()) workers_.resize(static_cast<size_t>(plan_.workers()));
  for (const job::GroupPlan& group : plan_.groups) {
    TANDEM_ASSIGN_OR_RETURN(auto policy, policies::NewUpdatePolicy(group.policy, plan_.workers()));
    policies_.push_back(std::move(policy));
  }
  for (const job::TablePlan& table : plan_.tables) {
    TANDEM_ASSIGN_OR_RETURN(auto optimizer,
                            optim::NewRowOptimizer(table.optimizer, table.extra_floats));
    optimizers_.push_back(std::move(optimizer));
    auto context = std::make_unique<TableContext>();
    context->plan = &table;
    context->optimizer = optimizers_.back().get();
    TANDEM_ASSIGN_OR_RETURN(context->schedule, optim::Schedule::New(table.optimizer.schedule()));
    context->policy = policies_[table.group].get();
    context->workers = plan_.workers();
    context->reads =
        1 + plan_.job.train().prefetch_steps() + plan_.job.train().max_inflight_pushes();
    context->lockstep = plan_.lockstep;
    context->arena = &arena_;
    if (budget_ != nullptr) {
      context->may_grow = [budget = budget_](size_t bytes) { return budget->MayGrow(bytes); };
    }
    context->record = plan_.job.staleness().record_updates();
    if (plan_.job.staleness().gradients() && table.placement == Table::SERVERS && !table.frozen &&
        table.optimizer.kind() != Optimizer::PROGRAM) {
      context->gradient_share = plan_.job.staleness().row_share();
    }
    context->over_tables = workers_.empty() ? nullptr : &workers_;
    context->records = &records_;
    context->order = plan_.job.staleness().record_order() ? &order_ : nullptr;
    tables_.push_back(std::move(context));
  }
  return absl::OkStatus();
}

// Moves the records, order entries and failures of the ranges to the effects.
void ShardCore::Give(ShardEffects* effects) {
  Append(&records_, &effects->records);
  Append(&order_, &effects->order);
  for (const auto& table : tables_) effects->failure.Update(table->failure);
  WatchMemory(effects);
}

// Only rows that grow end the job. Their copies do not. Rows that stay, or that make room for each
// other, may use memory in the margin if the process has begun to need more for something else.
void ShardCore::WatchMemory(ShardEffects* effects) {
  held_.Set(ranges_.held_bytes());
  const bool grows = arena_.resident() > last_resident_;
  last_resident_ = arena_.resident();
  if (told_of_memory_) return;
  grew_ = (grew_ || grows) && budget_->nearly_full_now();
  if (!grew_ || !budget_->nearly_full()) return;
  told_of_memory_ = true;
  effects->memory_full = NearlyFullText(ranges_.Owned(), *budget_);
}

void ShardCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view,
                       ShardEffects* effects) {
  if (!ranges_.OnView(now, std::move(view), effects)) return;
  waiting_reads_.ForEach([this](WaitingFrame* read) { CheckOwners(&read->slices); });
  waiting_reads_.WakeAll();
  early_.WakeAll();
  ServeWaiting(now, -1, effects);
  Give(effects);
}

// Rows that are loaded have not grown. A table that makes room for its rows, or never gets more,
// may have loaded them into the margin.
absl::Status ShardCore::OnLoaded() {
  held_.Set(ranges_.held_bytes());
  last_resident_ = arena_.resident();
  const bool grows =
      std::any_of(plan_.tables.begin(), plan_.tables.end(), [](const job::TablePlan& table) {
        return !table.frozen && !table.dense && table.eviction.kind() != Eviction::AT_BUDGET;
      });
  if (told_of_memory_ || !grows || !budget_->nearly_full_of_rows()) return absl::OkStatus();
  return MemoryFullError(
      absl::StrCat(NearlyFullText(ranges_.Owned(), *budget_), "; hint: ", job::kWaysToFit));
}

// ---- frames -----------------------------------------------------------------------------------

void ShardCore::OnFrame(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  const uint64_t sender = frame.header.incarnation;
  if (forgotten_.contains(sender)) return;  // a late frame of a dead worker
  switch (frame.header.kind) {
    case FrameKind::kPull:
      bytes_.pull += frame.frame.TotalBytes();
      OnPull(now, frame, effects);
      break;
    case FrameKind::kPush:
      bytes_.push += frame.frame.TotalBytes();
      OnPush(now, frame, effects);
      break;
    case FrameKind::kStore: {
      FrameHeader header = AnswerHeader(frame, FrameKind::kStored);
      header.first_step = 0;
      const bool write = IsStoreWrite(static_cast<StoreAction>(frame.header.flags));
      if (write && !refuses_writes_.empty() && !IsResentWrite(frame, ranges_.by_id())) {
        effects->Say({frame.header.sender, RefuseStore(frame, header, SliceStatus::kOverBudget,
                                                       refuses_writes_, buffers_)});
        break;
      }
      absl::StatusOr<Frame> answer =
          AnswerStore(frame, plan_, ranges_.map(), ranges_.by_id(), header, buffers_);
      if (absl::IsResourceExhausted(answer.status())) {
        effects->failure.Update(answer.status());
        break;
      }
      if (!answer.ok()) {
        peer_log_.Add(
            absl::StrCat("refused (", answer.status().message(), "): ", frame.DebugString()),
            effects);
        if (absl::IsInvalidArgument(answer.status())) {
          effects->Say({frame.header.sender, RefuseStore(frame, header, SliceStatus::kRefused,
                                                         answer.status().message(), buffers_)});
        }
        break;
      }
      (write ? bytes_.push : bytes_.pull) += frame.frame.TotalBytes();
      (write ? bytes_.ack : bytes_.rows) += answer->TotalBytes();
      effects->Say({frame.header.sender, *std::move(answer)});
      break;
    }
    case FrameKind::kControl:
      bytes_.control += frame.frame.TotalBytes();
      OnControl(now, frame, effects);
      break;
    default:
      peer_log_.Add(absl::StrCat("ignored: ", frame.DebugString()), effects);
      break;
  }
  Give(effects);
}

void ShardCore::OnControl(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  const absl::StatusOr<Control> control = frame.ParseControl();
  if (!control.ok()) {
    peer_log_.Add(control.status().ToString(), effects);
    return;
  }
  if (control->has_range_data()) {
    if (ranges_.OnRangeData(now, frame, control->range_data(), effects))
      ServeWaiting(now, -1, effects);
  } else if (control->has_command_done()) {
    ranges_.OnConfirmed(control->command_done().id());
  }
}

void ShardCore::OnTick(absl::Time now, ShardEffects* effects) {
  NotifyWaiting(now, effects);
  ranges_.OnTick(now, effects);
  if (grew_) WatchMemory(effects);
}

// Cuts a frame into slices. Refuses what the frame decoder cannot check because it does not know
// the job: ranges that do not exist, tables of another group, rows of the wrong length.
//
// The order of the checks: sender, group and step come first, since the rest uses them as indices.
// Then each slice is checked: its range, since that says which table the slice is of, and then its
// row length and the size of the answer, which need the table. The size is checked here because
// AnswerRead allocates it at once. One wrong slice refuses the whole frame: a client that sends one
// disagrees with the shard about the job, so its other slices cannot be trusted either. A range
// that is not here is no error; CheckOwners marks such slices.
bool ShardCore::CutSlices(const ParsedFrame& frame, std::vector<Slice>* slices,
                          std::string* why) const {
  slices->clear();
  const FrameHeader& h = frame.header;
  const bool push = h.kind == FrameKind::kPush;
  const bool worker = h.sender.role == Role::kWorker && h.sender.index < plan_.workers();
  // A reader (a process without a rank) may only read, and only as an evaluation does.
  const bool reader = h.sender.role == Role::kReader && !push && h.flags == kFlagEvaluate;
  const RangeMap* const map = ranges_.map();
  if (map == nullptr || h.group >= policies_.size() || !(worker || reader) || h.step < 0 ||
      h.first_step < 0) {
    *why = map == nullptr ? "no view yet" : "group, sender or step out of range";
    return false;
  }
  if (worker && !map->MayBeWorker(h.sender.index, h.incarnation)) {
    *why = absl::StrCat("another process is worker ", h.sender.index);
    return false;
  }
  size_t key_offset = 0, value_offset = 0, answer_bytes = 0;
  if (plan_.groups[h.group].properties.store) {
    *why = "a KEY_VALUE table takes no steps: use STORE frames";
    return false;
  }
  if ((h.flags & kFlagWithSlots) != 0 && (!push || (h.flags & kFlagAssign) == 0)) {
    *why = "flag WITH_SLOTS without ASSIGN";
    return false;
  }
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    Slice slice;
    slice.entry = frame.Entry(i);
    slice.key_offset = key_offset;
    slice.value_offset = value_offset;
    const SliceEntry& e = slice.entry;
    if (e.range >= map->ranges().size() ||
        plan_.tables[map->range(e.range).table].group != h.group) {
      *why = absl::StrCat("range ", e.range, " is not of group ", h.group);
      return false;
    }
    const TableContext& table = *tables_[map->range(e.range).table];
    const int dim = table.plan->dim;
    const int with_slots =
        (h.flags & kFlagWithSlots) != 0 ? table.optimizer->slots_per_row(dim) : 0;
    // The answer must fit in one frame.
    answer_bytes += size_t{e.rows} * static_cast<size_t>(dim + with_slots) * sizeof(float);
    if (!push && answer_bytes > kMaxPartBytes) {
      *why = absl::StrCat("asks for ", answer_bytes, " bytes, at most ", kMaxPartBytes);
      return false;
    }
    if (push && e.rows > 0 && e.row_floats != static_cast<uint32_t>(dim + with_slots)) {
      *why = absl::StrCat("rows of ", e.row_floats, " floats for table ", table.plan->name,
                          ", expected ", dim + with_slots);
      return false;
    }
    key_offset += size_t{e.rows} * sizeof(uint64_t);
    value_offset += size_t{e.rows} * e.row_floats * sizeof(float);
    slices->push_back(slice);
  }
  return true;
}

// Marks the slices of ranges that this shard does not own, or no longer owns.
void ShardCore::CheckOwners(std::vector<Slice>* slices) const {
  for (Slice& slice : *slices) {
    if (!slice.settled && ranges_.Find(slice.entry.range) == nullptr) {
      slice.entry.status = SliceStatus::kWrongView;
      slice.settled = true;
    }
  }
}

FrameHeader ShardCore::AnswerHeader(const ParsedFrame& frame, FrameKind kind) const {
  FrameHeader header = ranges_.NewHeader();
  header.kind = kind;
  header.flags = frame.header.flags;
  header.request = frame.header.request;
  header.step = frame.header.step;
  header.group = frame.header.group;
  header.first_step = ranges_.MinClock(frame.header.group);
  return header;
}

// ---- reads ------------------------------------------------------------------------------------
//
// A read is answered at once if the policy of its group allows it for all of its ranges. Otherwise
// the read waits in waiting_reads_, at the first range that does not allow it. Whenever a push or a
// view may have changed the decision of this range (policies::UpdatePolicy::MayServe), the shard
// looks at the read again. Every second it tells the worker of a waiting read for whom the read
// waits (WAITING), so that the worker does not take the read for lost.

void ShardCore::OnPull(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  std::string why;
  if (!CutSlices(frame, &slices_, &why)) {
    peer_log_.Add(absl::StrCat("refused (", why, "): ", frame.DebugString()), effects);
    return;
  }
  CheckOwners(&slices_);
  if (const Frame* const before = turns_->AnswerTo(frame.header); before != nullptr) {
    return effects->Say({frame.header.sender, *before});
  }
  if (const auto blocked = FindBlocked(frame, slices_); blocked.has_value()) {
    return waiting_reads_.Add(now, frame, slices_, {&*blocked, 1});
  }
  if (AnswerRead(now, frame, &slices_, effects)) ServeWaiting(now, -1, effects);
}

// The first range that may not be read yet; nullopt: the read may be answered.
std::optional<uint32_t> ShardCore::FindBlocked(const ParsedFrame& frame,
                                               const std::vector<Slice>& slices) const {
  if ((frame.header.flags & kFlagEvaluate) != 0) return std::nullopt;
  const int depth = plan_.job.train().prefetch_steps();
  for (const Slice& slice : slices) {
    if (slice.settled) continue;
    const Range& range = *ranges_.Find(slice.entry.range);
    if (!turns_->MayRead(range.ordered(), frame.header, slice.entry.rows, depth)) return range.id();
  }
  return std::nullopt;
}

bool ShardCore::WaitingReadsMustWait() const {
  bool must = true;
  waiting_reads_.ForEach([&](WaitingFrame* read) {
    must = must && FindBlocked(read->frame, read->slices).has_value();
  });
  return must;
}

size_t ShardCore::RowWords(const Slice& slice) const {
  if (slice.settled) return 0;
  const job::TablePlan& table = *ranges_.Find(slice.entry.range)->table().plan;
  return optim::WireWords(table.wire_dtype(), static_cast<size_t>(table.dim));
}

// Answers a read with one ROWS frame. All rows go into one buffer, so its size is summed up first.
// Settled slices (WRONG_VIEW) get an entry with their status and no rows. For each other slice:
//   1. the rows are copied;
//   2. the range remembers a read for training, with the same rows and before its version can move,
//      since the staleness of the update that comes from it is measured against them;
//   3. the entry states the version and the clock at which the rows were read.
// No push is admitted between two slices, so the answer shows one moment of the shard. True if
// pushes may have waited for this read.
bool ShardCore::AnswerRead(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                           ShardEffects* effects) {
  size_t words = 0;
  for (const Slice& slice : *slices) words += slice.entry.rows * RowWords(slice);
  Buffer values;
  if (words > 0) values = buffers_.Alloc(words * sizeof(float));
  absl::Span<float> out = values.MutableAs<float>();
  FrameHeader header = AnswerHeader(frame, FrameKind::kRows);
  entries_.clear();
  for (Slice& slice : *slices) {
    SliceEntry& e = slice.entry;
    e.row_floats = static_cast<uint32_t>(RowWords(slice));
    if (!slice.settled) {
      Range& range = *ranges_.Find(e.range);
      const absl::Span<const uint64_t> keys =
          frame.keys().As<uint64_t>().subspan(slice.key_offset / sizeof(uint64_t), e.rows);
      const absl::Span<float> rows = out.first(size_t{e.rows} * e.row_floats);
      absl::Span<const float> as_floats;
      const size_t absent = PullSlice(range, keys, e.row_floats, rows, &pulled_, &as_floats);
      const bool keep = (header.flags & kFlagKeep) != 0;
      if ((header.flags & kFlagEvaluate) == 0) {
        RowCounts& counts = tables_[range.table().plan->id]->stats.rows;
        counts.looked_up += keys.size();
        counts.found += keys.size() - absent;
        range.RememberRead(now, frame.header.sender.index, frame.header.step, keys, as_floats,
                           keep);
      }
      out.remove_prefix(rows.size());
      e.version = range.progress().version;
      e.clock = keep ? range.progress().MinApplied() : range.progress().MinClock();
      header.samples = range.ordered().order.last_closed_samples();
    } else {
      e.rows = 0;
    }
    entries_.push_back(e);
  }
  Frame answer = EncodeDataFrame(buffers_, header, entries_, Buffer(), std::move(values));
  bytes_.rows += answer.TotalBytes();
  const bool more = turns_->OnRead(frame.header, entries_, answer);
  for (size_t i = 0; more && i < entries_.size(); ++i) WakeRange(entries_[i].range);
  effects->Say({frame.header.sender, std::move(answer)});
  return more;
}

// Answers the woken reads that have their turn now. `freed_by`: the worker whose push may have
// allowed them; -1 if the cause was not a push. True if pushes may have waited for one of them.
bool ShardCore::ServeWaitingReads(absl::Time now, int freed_by, ShardEffects* effects) {
  bool more = false;
  const auto settle = [&](WaitingFrame* read, std::vector<uint32_t>* ranges) {
    if (const auto blocked = FindBlocked(read->frame, read->slices); blocked.has_value()) {
      ranges->push_back(*blocked);
      return false;
    }
    if (freed_by >= 0) waits_.Add(now, read->since, read->frame.header.sender.index, freed_by);
    if (AnswerRead(now, read->frame, &read->slices, effects)) more = true;
    return true;
  };
  waiting_reads_.Retry(/*from_start=*/false, settle);
  NotifyWaiting(now, effects);
  return more;
}

// Sets `notice` to the entry of a WAITING frame that says whom the frame waits for
// (proto/frame.md). False if it waits for no other worker.
bool ShardCore::FindAwaited(absl::Time now, const WaitingFrame& waits, SliceEntry* notice) const {
  for (const Slice& slice : waits.slices) {
    const Range* const range = ranges_.Find(slice.entry.range);
    if (slice.settled || range == nullptr) continue;
    const int awaited = turns_->Awaited(range->ordered(), waits.frame.header);
    if (awaited < 0) continue;
    notice->range = slice.entry.range;
    notice->row_floats = static_cast<uint32_t>(awaited);
    notice->version = range->progress().workers[static_cast<size_t>(awaited)].admitted;
    notice->clock = absl::ToInt64Milliseconds(now - waits.since);
    return true;
  }
  return false;
}

// Tells the sender of each frame that waits for another worker whom it waits for (WAITING). The
// message restarts the sender's own timeout.
void ShardCore::NotifyWaiting(absl::Time now, ShardEffects* effects) {
  for (WaitingFrames* const frames : {&waiting_reads_, &early_}) {
    frames->ForEachDue(now, [&](const WaitingFrame& waits) {
      SliceEntry e;
      if (!FindAwaited(now, waits, &e)) return;
      effects->Say({waits.frame.header.sender,
                    EncodeDataFrame(buffers_, AnswerHeader(waits.frame, FrameKind::kWaiting),
                                    {&e, 1}, Buffer(), Buffer())});
    });
  }
}

Activity ShardCore::Waiting(absl::Time now) const {
  const WaitingFrame* const read = waiting_reads_.First();
  const WaitingFrame* const waits = read != nullptr ? read : early_.First();
  SliceEntry e;
  if (waits == nullptr || !FindAwaited(now, *waits, &e)) return {};
  return {absl::StrCat(waits->frame.header.sender.DebugString(), " waits for worker ", e.row_floats,
                       " at step ", e.version, ", ", e.clock / 1000, " s so far"),
          EndpointId::Worker(static_cast<int>(e.row_floats))};
}

// ---- pushes -----------------------------------------------------------------------------------
//
// Each slice of a push is settled by itself: it is held, applied, dropped, found to be a duplicate,
// or refused. A slice cannot be settled before the worker's earlier steps have arrived. Its frame
// then waits in early_, and is tried again after each push of the worker and after changes of the
// ranges that it waits for. The shard acknowledges a push when all of its slices are settled.

void ShardCore::OnPush(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  std::string why;
  if (!CutSlices(frame, &slices_, &why)) {
    peer_log_.Add(absl::StrCat("refused (", why, "): ", frame.DebugString()), effects);
    return;
  }
  CheckOwners(&slices_);
  std::vector<Slice> slices;
  slices.swap(slices_);  // slices_ is scratch memory, which ServeWaiting may use for other frames
  if (AdmitSlices(now, frame, &slices, effects)) {
    Acknowledge(frame, slices, effects);
  } else {
    range_ids_.clear();
    AppendUnsettled(slices, &range_ids_);
    early_.Add(now, frame, slices, range_ids_);
  }
  slices_.swap(slices);
  // Some slices may have been admitted even if the frame as a whole is not settled.
  ServeWaiting(now, frame.header.sender.index, effects);
}

// Tries to settle each slice. True if all of them are settled.
bool ShardCore::AdmitSlices(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                            ShardEffects* effects) {
  bool all = true, admitted = false;
  const bool may_hold = plan_.groups[frame.header.group].properties.holds;
  const bool over_budget = may_hold && !turns_->DecidedElsewhere() &&
                           (frame.header.flags & kFlagAssign) == 0 &&
                           ranges_.held_bytes() + frame.keys().size() + frame.values().size() >
                               static_cast<size_t>(plan_.job.limits().held_bytes_per_shard());
  for (Slice& slice : *slices) {
    const Range* const range = ranges_.Find(slice.entry.range);
    const bool before =  // a duplicate needs no memory
        range != nullptr && HasAdmitted(*range, frame.header.sender.index, frame.header.step);
    if (!slice.settled && over_budget && !before) {
      slice.entry.status = SliceStatus::kOverBudget;
      slice.settled = true;
    }
    if (!slice.settled && AdmitSlice(now, frame, &slice, effects)) admitted = true;
    all = all && slice.settled;
  }
  if (admitted) {
    waiting_reads_.WakeWorker(frame.header.sender.index);
    early_.WakeWorker(frame.header.sender.index);
    WakeAtChangedRanges();
  }
  return all;
}

// Gives one slice of a push to its range, and turns the range's decision into the slice's status. A
// slice that has to wait stays unsettled and is tried again later.
//
// The order: ownership is checked again, because the range may have moved away while the frame
// waited. ASSIGN is not a step and has no place in the order of updates, so it is handled before
// the checks that follow. The order of turns may keep the push waiting. The range decides the rest
// (Range::Admit). True if the range has admitted a step.
bool ShardCore::AdmitSlice(absl::Time now, const ParsedFrame& frame, Slice* slice,
                           ShardEffects* effects) {
  const FrameHeader& h = frame.header;
  SliceEntry& e = slice->entry;
  Range* const range = ranges_.Find(e.range);
  if (range == nullptr) {  // moved away while the frame waited
    e.status = SliceStatus::kWrongView;
    slice->settled = true;
    return false;
  }
  HeldUpdate update;
  if (e.rows > 0) {
    update.keys = frame.keys().Slice(slice->key_offset, size_t{e.rows} * sizeof(uint64_t));
    update.values =
        frame.values().Slice(slice->value_offset, size_t{e.rows} * e.row_floats * sizeof(float));
  }
  if ((h.flags & kFlagAssign) != 0) {
    range->AssignRows(update.keys.As<uint64_t>(), update.values.As<float>(),
                      (h.flags & kFlagWithSlots) != 0);
    slice->settled = true;
    return false;
  }
  update.rank = h.sender.index;
  update.step = h.step;
  update.samples = h.samples;
  update.skipped = (h.flags & kFlagSkipped) != 0 && h.samples == 0;
  update.version_read = e.version;
  update.clock_gap = h.clock_gap;
  update.in_flight = h.in_flight;
  update.sample_clock = h.sample_clock;
  update.positives = h.positives;
  const absl::StatusOr<bool> turn = turns_->MayAdmit(range->ordered(), h, &update);
  if (!turn.ok()) effects->failure = turn.status();
  if (!turn.value_or(false)) return false;
  switch (range->Admit(now, h.incarnation, h.first_step, std::move(update),
                       (h.flags & kFlagEndOfEpoch) != 0)) {
    case Range::Admission::kDuplicate:
      e.version = range->progress().version;
      // The first acknowledgement may have said "dropped, too late", and may have been lost. The
      // range does not remember that, so every resent push of a closed step gets this status.
      if (plan_.groups[h.group].properties.skips && h.samples > 0 && h.step < e.version) {
        e.status = SliceStatus::kDropped;
      }
      slice->settled = true;
      return false;
    case Range::Admission::kLate:
      e.status = SliceStatus::kDropped;
      [[fallthrough]];
    case Range::Admission::kAdmitted:
      turns_->OnAdmitted(range->ordered(), h);
      // In an order decided elsewhere, a frame may wait for any push of the range.
      if (turns_->DecidedElsewhere()) WakeRange(e.range);
      e.version = range->progress().version;
      slice->settled = true;
      return true;
    case Range::Admission::kEarly:
      return false;
    case Range::Admission::kRefused:
      e.status = SliceStatus::kRefused;
      slice->settled = true;
      peer_log_.Add(absl::StrCat("refused slice of range ", e.range, ": ", frame.DebugString()),
                    effects);
      return false;
  }
  return false;
}

void ShardCore::RetryEarly(absl::Time now, ShardEffects* effects) {
  const auto settle = [&](WaitingFrame* push, std::vector<uint32_t>* ranges) {
    if (!AdmitSlices(now, push->frame, &push->slices, effects)) {
      AppendUnsettled(push->slices, ranges);
      return false;
    }
    Acknowledge(push->frame, push->slices, effects);
    return true;
  };
  early_.Retry(/*from_start=*/true, settle);
}

// Wakes the pushes and reads that wait at this range.
void ShardCore::WakeRange(uint32_t range) {
  waiting_reads_.WakeRange(range);
  early_.WakeRange(range);
}

void ShardCore::WakeAtChangedRanges() {
  ranges_.totals().TakeChanged(&changed_);
  for (const uint32_t range : changed_) WakeRange(range);
}

// Call it after a frame or a view has changed a range: early pushes and waiting reads may be able
// to continue. Pushes are first, because an admitted push may allow reads. If an answered read may
// allow a push, both are tried again.
void ShardCore::ServeWaiting(absl::Time now, int freed_by, ShardEffects* effects) {
  WakeAtChangedRanges();
  for (bool more = true; more;) {
    RetryEarly(now, effects);
    // REFRESH frames go out before reads of this version are answered. A read may make the range
    // drop other rows from the worker's kept ones; a later refresh will name those.
    const size_t others = effects->out.size();
    AppendRefreshes(&ranges_, buffers_, &refresh_rows_, &effects->out);
    for (size_t i = others; i < effects->out.size(); ++i) {
      bytes_.refresh += effects->out[i].frame.TotalBytes();
      effects->urgent = true;
    }
    more = ServeWaitingReads(now, freed_by, effects);
  }
}

// Sends the ACK. The frame has entries only for the slices that were not admitted or came too late.
void ShardCore::Acknowledge(const ParsedFrame& frame, absl::Span<const Slice> slices,
                            ShardEffects* effects) {
  entries_.clear();
  for (const Slice& slice : slices) {
    if (slice.entry.status == SliceStatus::kOk) continue;
    SliceEntry e = slice.entry;
    e.rows = 0;
    e.row_floats = 0;
    entries_.push_back(e);
  }
  Frame answer =
      EncodeDataFrame(buffers_, AnswerHeader(frame, FrameKind::kAck), entries_, Buffer(), Buffer());
  bytes_.ack += answer.TotalBytes();
  effects->out.push_back({frame.header.sender, std::move(answer)});
}

// ---- the rest ---------------------------------------------------------------------------------

void ShardCore::FinishDelayed(ShardEffects* effects) {
  ranges_.FinishDelayed();
  Give(effects);
}

ShardReport ShardCore::ForgetWorker(int rank) {
  const uint64_t dead = ranges_.map()->IncarnationOf(rank);
  if (dead != 0) forgotten_.insert(dead);
  waiting_reads_.Forget(rank);
  early_.Forget(rank);
  int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
  for (Range* const range : ranges_.Owned()) {
    if (range->writes() != nullptr) continue;  // programs write these rows without steps
    range->ForgetWorker(rank);
    const int64_t admitted = range->progress().workers[static_cast<size_t>(rank)].admitted;
    least = std::min(least, admitted);
    most = std::max(most, admitted);
  }
  held_.Set(ranges_.held_bytes());  // without what was kept for the reads of the worker
  ShardReport report = Report();
  report.mutable_forgotten()->set_worker(rank);
  report.mutable_forgotten()->set_min_step(least);
  report.mutable_forgotten()->set_max_step(most);
  return report;
}

ShardReport ShardCore::Report() const {
  ShardReport report;
  report.set_server(self_.index);
  report.set_shard(self_.shard);
  for (const auto& table : tables_) {
    TableReport* out = report.add_table();
    out->set_table(table->plan->name);
    FillUpdates(table->stats.total, out);
    FillDistribution(table->stats.in_flight, out->mutable_in_flight_depth());
    for (const UpdateStats& worker : table->stats.workers) FillUpdates(worker, out->add_worker());
    for (const Sum& sum : table->stats.by_popularity) {
      FillDistribution(sum, out->add_by_popularity());
    }
    for (const GradientSums::Cell& cell : table->stats.gradients.by_staleness) {
      cell.FillMessage(out->add_gradients_by_staleness());
    }
    for (const GradientSums::Cell& cell : table->stats.gradients.by_popularity) {
      cell.FillMessage(out->add_gradients_by_popularity());
    }
    if (table->plan->has_row_rules()) FillRowCounts(table->stats.rows, out->mutable_row_counts());
  }
  for (const Range* const range : ranges_.Owned()) {
    TableReport* const out = report.mutable_table(static_cast<int>(range->table().plan->id));
    if (ranges_.IsFirstCopy(range->id())) {
      out->set_rows(out->rows() + static_cast<uint64_t>(range->store().size()));
    }
    out->set_bytes(out->bytes() + range->store().Memory().bytes());
    if (range->table().plan->types.hot_updates > 0) {
      const bool first = ranges_.IsFirstCopy(range->id());
      out->set_hot_rows(out->hot_rows() +
                        (first ? static_cast<uint64_t>(range->store().hot_rows()) : 0));
    }
    if (!range->store().limited() || !out->has_row_counts()) continue;
    out->mutable_row_counts()->set_candidates(out->row_counts().candidates() +
                                              static_cast<uint64_t>(range->store().candidates()));
  }
  for (const UpdateStats& worker : workers_) FillUpdates(worker, report.add_worker());
  if (waits_.in_pairs()) {
    for (size_t rank = 0; rank < waits_.workers(); ++rank) {
      const absl::Span<const double> row = waits_.Row(rank);
      report.add_waiting()->mutable_seconds()->Assign(row.begin(), row.end());
    }
  } else {
    report.mutable_waited()->Assign(waits_.waited().begin(), waits_.waited().end());
    report.mutable_awaited()->Assign(waits_.awaited().begin(), waits_.awaited().end());
  }
  if (budget_ != nullptr) {
    report.set_memory_bytes(budget_->used());
    report.set_memory_limit(budget_->limit());
  }
  const std::pair<const char*, uint64_t> traffic[] = {
      {"pull", bytes_.pull}, {"rows", bytes_.rows},       {"push", bytes_.push},
      {"ack", bytes_.ack},   {"refresh", bytes_.refresh}, {"control", bytes_.control}};
  for (const auto& [kind, bytes] : traffic) {
    if (bytes > 0) (*report.mutable_bytes())[kind] = bytes;
  }
  return report;
}

}  // namespace tandem::server
