#include "server/shard_core.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/store_answer.h"

namespace tandem::server {
namespace {

constexpr absl::Duration kNoticeInterval = absl::Seconds(1);
constexpr absl::Duration kMoveResend = absl::Milliseconds(500);

// Early pushes and parked reads an honest worker can have at a shard: its depth, or its pushes in
// flight, for every group. Beyond this the frame is dropped and the client asks again.
constexpr size_t kMaxParkedPerWorker = 4096;

uint64_t MoveId(uint32_t range, uint32_t view) { return static_cast<uint64_t>(view) << 32 | range; }

void Say(ShardEffects* effects, Outgoing outgoing) {
  effects->out.push_back(std::move(outgoing));
  effects->urgent = true;
}

void FillDistribution(const Measure& measure, Distribution* out) {
  out->set_count(measure.count);
  out->set_sum(measure.sum);
  out->set_max(measure.max);
  const auto& counts = measure.histogram.counts;
  size_t used = counts.size();
  while (used > 0 && counts[used - 1] == 0) --used;
  out->mutable_bucket()->Assign(counts.begin(), counts.begin() + used);
}

// Of a table, or of one worker: they have the same fields.
template <typename Message>
void FillUpdates(const UpdateStats& stats, Message* out) {
  out->set_sent(stats.arrived);
  out->set_applied(stats.applied);
  out->set_merged(stats.merged);
  out->set_dropped(stats.dropped);
  FillDistribution(stats.clock_gap, out->mutable_clock_gap());
  FillDistribution(stats.version_staleness, out->mutable_version_staleness());
  FillDistribution(stats.age, out->mutable_age());
  FillDistribution(stats.row_staleness, out->mutable_row_staleness());
}

template <typename Record>
void Append(std::vector<Record>* from, std::vector<Record>* to) {
  to->insert(to->end(), from->begin(), from->end());
  from->clear();
}

void Give(std::vector<UpdateRecord>* records, std::vector<OrderEntry>* order,
          ShardEffects* effects) {
  Append(records, &effects->records);
  Append(order, &effects->order);
}

// Was this step of the worker admitted before? Such a duplicate holds no memory, so the budget does not
// matter to it.
bool Admitted(const Range& range, const FrameHeader& push) {
  return push.step < range.progress().workers[push.sender.index].admitted;
}

// ---- in a replay ----

// Rows are read at the version at which they were read. A read of nothing waits for its policy, which
// in jobs that take steps together says by it that a step has closed; a policy that goes by the time
// is asked for what it promises at any time.
bool MayReadAgain(const Replay& replay, const Range& range, const FrameHeader& read, uint32_t rows,
                  int depth) {
  const policies::RangeProgress& progress = range.progress();
  if (rows > 0) return replay.MayRead(range.id(), read.sender.index, read.step, progress.version);
  const policies::UpdatePolicy& policy = *range.table().policy;
  if (policy.properties().measures_steps) return policy.MayStart(read.step, progress.MinClock());
  return policy.MayServe(progress, read.sender.index, read.step, depth);
}

// Has the push its turn in the recorded order? If it can never have it, the shard has failed.
bool HasTurn(const Replay& replay, const Range& range, const FrameHeader& h, HeldUpdate* update,
             ShardEffects* effects) {
  OrderEntry push;
  push.range = range.id();
  push.worker = static_cast<uint16_t>(update->rank);
  push.finished = (h.flags & kFlagEndOfEpoch) != 0 ? 1 : 0;
  push.steps = static_cast<uint32_t>(h.step + 1 - h.first_step);
  push.rows = static_cast<uint32_t>(update->keys.size() / sizeof(uint64_t));
  push.step = update->step;
  push.samples = update->samples;
  push.version_read = update->version_read;
  std::string why;
  const Replay::Turn turn = replay.MayAdmit(push, range.progress().version, &why);
  if (turn == Replay::Turn::kNever) {
    effects->failure = absl::FailedPreconditionError(absl::StrCat(
        "not as recorded: ", why, "; hint: are job, data and programs those of the run?"));
  }
  if (turn != Replay::Turn::kNow) return false;
  update->read_number = replay.Next(push.range).read_number;
  return true;
}

// The worker that somebody who reads the range, or has pushed to it, waits for.
int Awaited(const Replay* replay, const Range& range, int waits) {
  const int next =
      replay == nullptr ? -1 : replay->Awaited(range.id(), waits, range.progress().version);
  return next >= 0 ? next : range.progress().Slowest();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardCore>> ShardCore::New(const job::JobPlan& plan, EndpointId self,
                                                          uint64_t incarnation,
                                                          BufferSource& buffers,
                                                          std::unique_ptr<Replay> replay) {
  std::unique_ptr<ShardCore> core(
      new ShardCore(plan, self, incarnation, buffers, std::move(replay)));
  TANDEM_RETURN_IF_ERROR(core->Init());
  return core;
}

ShardCore::ShardCore(const job::JobPlan& plan, EndpointId self, uint64_t incarnation,
                     BufferSource& buffers, std::unique_ptr<Replay> replay)
    : plan_(plan),
      self_(self),
      incarnation_(incarnation),
      buffers_(buffers),
      replay_(std::move(replay)),
      waits_(plan.workers()) {}

ShardCore::~ShardCore() = default;

absl::Status ShardCore::Init() {
  for (const job::GroupPlan& group : plan_.groups) {
    TANDEM_ASSIGN_OR_RETURN(auto policy, policies::NewUpdatePolicy(group.policy, plan_.workers()));
    policies_.push_back(std::move(policy));
  }
  for (const job::TablePlan& table : plan_.tables) {
    TANDEM_ASSIGN_OR_RETURN(auto optimizer,
                            optim::NewRowOptimizer(table.optimizer, table.state_floats));
    optimizers_.push_back(std::move(optimizer));
    auto context = std::make_unique<TableContext>();
    context->plan = &table;
    context->optimizer = optimizers_.back().get();
    context->policy = policies_[table.group].get();
    context->workers = plan_.workers();
    context->reads = 1 + plan_.job.train().depth() + plan_.job.train().max_unacknowledged();
    context->lockstep = plan_.lockstep;
    context->record = plan_.job.staleness().record();
    context->records = &records_;
    context->order = plan_.job.staleness().order() ? &order_ : nullptr;
    tables_.push_back(std::move(context));
  }
  return absl::OkStatus();
}

// ---- views and moving ranges ------------------------------------------------------------------
//
// A range moves in three phases: the old owner packs it, forgets it and sends the package; the new
// owner installs it and confirms; the old owner stops sending. Frames may be lost and come in any
// order, so the package is sent again until it is confirmed, a package may come before the view
// that announces it, and one that comes late must not be installed a second time.

void ShardCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view,
                       ShardEffects* effects) {
  if (map_ != nullptr && view->view() <= map_->view()) return;
  const bool first = map_ == nullptr;
  map_ = std::move(view);
  owned_.resize(map_->ranges().size());
  for (uint32_t id = 0; id < owned_.size(); ++id) {
    const bool mine = map_->range(id).owner == self_;
    if (first && mine && map_->view() == 1) InstallRange(id, nullptr, 1, effects);
    if (!mine && owned_[id] != nullptr) MoveAway(now, id, effects);
    const auto arrival = arrivals_.find(id);
    if (arrival != arrivals_.end() && arrival->second.view <= map_->view()) {
      const IncomingRange incoming = std::move(arrival->second);
      arrivals_.erase(arrival);
      InstallRange(id, &incoming.image, incoming.view, effects);
      if (!mine && owned_[id] != nullptr) MoveAway(now, id, effects);
    }
  }
  for (Parked& read : parked_) CheckOwners(&read.slices);
  GoOn(now, -1, effects);
  Give(&records_, &order_, effects);
}

// `view`: the one by which it comes.
void ShardCore::InstallRange(uint32_t id, const RangeImage* image, uint32_t view,
                             ShardEffects* effects) {
  const RangeMap::Range& info = map_->range(id);
  auto range =
      std::make_unique<Range>(id, info.begin, info.end, tables_[info.table].get(), &scratch_);
  if (image != nullptr) {
    if (const absl::Status status = range->Restore(*image, buffers_); !status.ok()) {
      peer_log_.Add(absl::StrCat("range ", id, " arrived unusable: ", status.ToString()), effects);
      return;
    }
    if (delayed_finished_) range->FinishDelayed();
  }
  if (range->subscriptions() != nullptr) {
    range->subscriptions()->Begin(view, Subscriptions::ClockOf(range->progress()));
  }
  owned_[id] = std::move(range);
}

void ShardCore::MoveAway(absl::Time now, uint32_t id, ShardEffects* effects) {
  const std::string bytes = EncodeRange(owned_[id]->Image());
  OutgoingMove move;
  move.image =
      CopyToBuffer(buffers_, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  move.view = map_->view();
  move.to = map_->range(id).owner;
  owned_[id].reset();
  SendMove(now, id, &(moves_[id] = std::move(move)), effects);
}

void ShardCore::SendMove(absl::Time now, uint32_t id, OutgoingMove* move, ShardEffects* effects) {
  move->next_send = now + kMoveResend;
  Control control;
  control.mutable_range_data()->set_range(id);
  control.mutable_range_data()->set_view(move->view);
  FrameHeader header;
  header.sender = self_;
  header.incarnation = incarnation_;
  header.view = map_->view();
  Say(effects, {move->to, EncodeControlFrame(buffers_, header, control, move->image)});
}

void ShardCore::OnRangeData(absl::Time now, const ParsedFrame& frame, const RangeData& data,
                            ShardEffects* effects) {
  const uint32_t id = data.range();
  if (map_ == nullptr || id >= owned_.size() || frame.header.sender.role != Role::kServer) {
    peer_log_.Add(absl::StrCat("ignored range ", id, " from ", frame.header.sender.DebugString()),
                  effects);
    return;
  }
  absl::StatusOr<RangeImage> image = DecodeRange({frame.values().data(), frame.values().size()});
  if (!image.ok()) {
    peer_log_.Add(absl::StrCat("range ", id, " from ", frame.header.sender.DebugString(), ": ",
                               image.status().ToString()),
                  effects);
    return;  // the sender tries again
  }
  // A move carries the number of the view that caused it, and those grow along a chain of owners;
  // so a copy that comes late, after the range has moved on, is known and never installed again.
  uint32_t& newest = newest_arrival_[id];
  if (data.view() > newest) {
    if (const auto move = moves_.find(id);
        move != moves_.end() && move->second.view < data.view()) {
      moves_.erase(move);  // the range comes back to us, so our package had arrived
    }
    if (map_->view() < data.view()) {
      arrivals_[id] = {*std::move(image), data.view()};
    } else if (owned_[id] == nullptr) {
      InstallRange(id, &*image, data.view(), effects);
      if (owned_[id] == nullptr) return;
      if (map_->range(id).owner != self_) MoveAway(now, id, effects);
    } else {
      return;
    }
    newest = data.view();
  }
  Control control;
  control.mutable_command_done()->set_id(MoveId(id, data.view()));
  FrameHeader header;
  header.sender = self_;
  header.incarnation = incarnation_;
  header.view = view();
  Say(effects, {frame.header.sender, EncodeControlFrame(buffers_, header, control)});
  GoOn(now, -1, effects);
}

void PeerLog::Add(std::string line, ShardEffects* effects) {
  if (lines_ >= kMost) return;
  effects->log.push_back(std::move(line));
  if (++lines_ == kMost) effects->log.push_back("more lines like these are not logged");
}

// ---- frames -----------------------------------------------------------------------------------

void ShardCore::OnFrame(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
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
      absl::StatusOr<Frame> answer =
          AnswerStore(frame, plan_, map_.get(), owned_, header, buffers_);
      if (!answer.ok()) {
        peer_log_.Add(
            absl::StrCat("refused (", answer.status().message(), "): ", frame.DebugString()),
            effects);
        if (absl::IsInvalidArgument(answer.status())) {
          Say(effects, {frame.header.sender,
                        RefuseStore(frame, header, answer.status().message(), buffers_)});
        }
        break;
      }
      const bool write = IsStoreWrite(static_cast<StoreAction>(frame.header.flags));
      (write ? bytes_.push : bytes_.pull) += frame.frame.TotalBytes();
      (write ? bytes_.ack : bytes_.rows) += answer->TotalBytes();
      Say(effects, {frame.header.sender, *std::move(answer)});
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
  Give(&records_, &order_, effects);
}

void ShardCore::OnControl(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  const absl::StatusOr<Control> control = frame.ParseControl();
  if (!control.ok()) {
    peer_log_.Add(control.status().ToString(), effects);
    return;
  }
  if (control->has_range_data()) {
    OnRangeData(now, frame, control->range_data(), effects);
  } else if (control->has_command_done()) {
    const uint64_t id = control->command_done().id();
    const auto move = moves_.find(static_cast<uint32_t>(id));
    if (move != moves_.end() && move->second.view == id >> 32) moves_.erase(move);
  }
}

void ShardCore::OnTick(absl::Time now, ShardEffects* effects) {
  NotifyWaiting(now, effects);
  for (auto& [id, move] : moves_) {
    if (move.next_send <= now) SendMove(now, id, &move, effects);
  }
}

// Cuts a frame into slices, and refuses what the frame decoder cannot know: ranges that do not
// exist, tables of another group, rows of the wrong length.
bool ShardCore::CutSlices(const ParsedFrame& frame, std::vector<Slice>* slices,
                          std::string* why) const {
  slices->clear();
  const FrameHeader& h = frame.header;
  const bool push = h.kind == FrameKind::kPush;
  const bool worker = h.sender.role == Role::kWorker && h.sender.index < plan_.workers();
  // Who has no rank may look, and do nothing else.
  const bool reader = h.sender.role == Role::kReader && !push && h.flags == kFlagEvaluate;
  if (map_ == nullptr || h.group >= policies_.size() || !(worker || reader) || h.step < 0 ||
      h.first_step < 0) {
    *why = map_ == nullptr ? "no view yet" : "group, sender or step out of range";
    return false;
  }
  size_t key_offset = 0, value_offset = 0, answer_bytes = 0;
  if (plan_.groups[h.group].properties.store) {
    *why = "a STORE table takes no steps";
    return false;
  }
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    Slice slice;
    slice.entry = frame.Entry(i);
    slice.key_offset = key_offset;
    slice.value_offset = value_offset;
    const SliceEntry& e = slice.entry;
    if (e.range >= map_->ranges().size() ||
        plan_.tables[map_->range(e.range).table].group != h.group) {
      *why = absl::StrCat("range ", e.range, " is not of group ", h.group);
      return false;
    }
    const TableContext& table = *tables_[map_->range(e.range).table];
    const int dim = table.plan->dim;
    const int with_slots =
        (h.flags & kFlagWithSlots) != 0 ? table.optimizer->slots_per_row(dim) : 0;
    if (push && (h.flags & kFlagWithSlots) != 0 && (h.flags & kFlagAssign) == 0) {
      *why = "gradients have no slots";
      return false;
    }
    // An answer must fit a frame.
    answer_bytes += size_t{e.rows} * static_cast<size_t>(dim + with_slots) * sizeof(float);
    if (!push && answer_bytes > kMaxPartBytes) {
      *why = absl::StrCat("asks for ", answer_bytes, " bytes, at most ", kMaxPartBytes);
      return false;
    }
    if (push && e.rows > 0 && e.row_floats != static_cast<uint32_t>(dim + with_slots)) {
      *why = absl::StrCat("rows of ", e.row_floats, " floats for table ", table.plan->name,
                          ", want ", dim + with_slots);
      return false;
    }
    key_offset += size_t{e.rows} * sizeof(uint64_t);
    value_offset += size_t{e.rows} * e.row_floats * sizeof(float);
    slices->push_back(slice);
  }
  return true;
}

// Marks slices of ranges that are not (or no longer) here.
void ShardCore::CheckOwners(std::vector<Slice>* slices) const {
  for (Slice& slice : *slices) {
    if (!slice.settled && owned_[slice.entry.range] == nullptr) {
      slice.entry.status = SliceStatus::kWrongView;
      slice.settled = true;
    }
  }
}

FrameHeader ShardCore::AnswerHeader(const ParsedFrame& frame, FrameKind kind) const {
  FrameHeader header;
  header.kind = kind;
  header.flags = frame.header.flags;
  header.sender = self_;
  header.view = view();
  header.incarnation = incarnation_;
  header.request = frame.header.request;
  header.step = frame.header.step;
  header.group = frame.header.group;
  header.first_step = MinClock(frame.header.group);
  return header;
}

int64_t ShardCore::MinClock(uint32_t group) const {
  int64_t smallest = policies::kInfiniteClock;
  for (const auto& range : owned_) {
    if (range == nullptr || range->table().plan->group != group) continue;
    smallest = std::min(smallest, range->progress().MinClock());
  }
  return smallest;
}

// ---- reads ------------------------------------------------------------------------------------
//
// A read is answered at once if the policy of its group lets every range of it be read. Otherwise
// it is parked: whenever a push or a view may have changed that, all parked reads are looked at
// again. A worker whose read waits is told every second for whom, so that it does not take waiting
// for loss.

void ShardCore::OnPull(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  std::string why;
  if (!CutSlices(frame, &slices_, &why)) {
    peer_log_.Add(absl::StrCat("refused (", why, "): ", frame.DebugString()), effects);
    return;
  }
  CheckOwners(&slices_);
  if (replay_ != nullptr && frame.header.flags == 0) {
    const Frame* const before = replay_->AnswerTo(frame.header.sender.index, frame.header.request);
    if (before != nullptr) return Say(effects, {frame.header.sender, *before});
  }
  if (MayServe(frame, slices_)) {
    AnswerRead(now, frame, &slices_, effects);
    if (replay_ != nullptr) GoOn(now, -1, effects);
    return;
  }
  size_t of_this_worker = 0;
  for (Parked& read : parked_) {
    if (read.frame.header.sender != frame.header.sender) continue;
    if (read.frame.header.request == frame.header.request) {  // asked again: say why it waits
      read.next_notice = now;
      return;
    }
    ++of_this_worker;
  }
  if (of_this_worker >= kMaxParkedPerWorker) return;
  parked_.push_back({frame, KeepSlices(slices_), now, now + kNoticeInterval});
}

// A copy of slices_, in memory that earlier parked frames have left behind.
std::vector<ShardCore::Slice> ShardCore::KeepSlices(const std::vector<Slice>& slices) {
  std::vector<Slice> kept;
  if (!spare_slices_.empty()) {
    kept = std::move(spare_slices_.back());
    spare_slices_.pop_back();
  }
  kept.assign(slices.begin(), slices.end());
  return kept;
}

bool ShardCore::MayServe(const ParsedFrame& frame, const std::vector<Slice>& slices) const {
  if ((frame.header.flags & kFlagEvaluate) != 0) return true;
  const int depth = plan_.job.train().depth();
  for (const Slice& slice : slices) {
    if (slice.settled) continue;
    const Range& range = *owned_[slice.entry.range];
    const bool may =
        replay_ == nullptr
            ? range.table().policy->MayServe(range.progress(), frame.header.sender.index,
                                             frame.header.step, depth)
            : MayReadAgain(*replay_, range, frame.header, slice.entry.rows, depth);
    if (!may) return false;
  }
  return true;
}

size_t ShardCore::RowFloats(const ParsedFrame& frame, const Slice& slice) const {
  if (slice.settled) return 0;
  const RangeStore& store = owned_[slice.entry.range]->store();
  const bool with_slots = (frame.header.flags & kFlagWithSlots) != 0;
  return static_cast<size_t>(store.dim() + (with_slots ? store.slots_per_row() : 0));
}

void ShardCore::AnswerRead(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                           ShardEffects* effects) {
  size_t floats = 0;
  for (const Slice& slice : *slices) floats += slice.entry.rows * RowFloats(frame, slice);
  Buffer values;
  if (floats > 0) values = buffers_.Alloc(floats * sizeof(float));
  absl::Span<float> out = values.MutableAs<float>();
  FrameHeader header = AnswerHeader(frame, FrameKind::kRows);
  entries_.clear();
  for (Slice& slice : *slices) {
    SliceEntry& e = slice.entry;
    e.row_floats = static_cast<uint32_t>(RowFloats(frame, slice));
    if (!slice.settled) {
      Range& range = *owned_[e.range];
      const absl::Span<const uint64_t> keys =
          frame.keys().As<uint64_t>().subspan(slice.key_offset / sizeof(uint64_t), e.rows);
      const absl::Span<float> rows = out.first(size_t{e.rows} * e.row_floats);
      if ((header.flags & kFlagWithSlots) != 0) {
        range.store().PeekWithSlots(keys, rows);
      } else if ((header.flags & kFlagEvaluate) != 0) {
        range.store().Peek(keys, rows);
      } else {
        range.store().Pull(keys, rows);
        if (range.subscriptions() != nullptr && (header.flags & kFlagKeep) != 0) {
          // The rows that its update comes from are of several moments: none of them is remembered.
          range.subscriptions()->OnRead(frame.header.sender.index, frame.header.step, keys);
        } else {
          range.RememberRead(now, frame.header.sender.index, frame.header.step, keys, rows);
        }
        if (replay_ != nullptr && e.rows > 0) {
          replay_->OnRead(e.range, frame.header.sender.index, frame.header.step);
        }
      }
      out.remove_prefix(rows.size());
      e.version = range.progress().version;
      const bool keep = (header.flags & kFlagKeep) != 0;
      e.clock = keep ? Subscriptions::ClockOf(range.progress()) : range.progress().MinClock();
      header.samples = range.last_closed_samples();
    } else {
      e.rows = 0;
    }
    entries_.push_back(e);
  }
  Frame answer = EncodeDataFrame(buffers_, header, entries_, Buffer(), std::move(values));
  bytes_.rows += answer.TotalBytes();
  if (replay_ != nullptr && header.flags == 0) {
    replay_->KeepAnswer(frame.header.sender.index, frame.header.request, frame.header.step, answer);
  }
  Say(effects, {frame.header.sender, std::move(answer)});
}

// `freed_by`: the worker whose push may have freed reads; -1: what came was no push.
void ShardCore::ServeParked(absl::Time now, int freed_by, ShardEffects* effects) {
  for (size_t i = 0; i < parked_.size();) {
    if (MayServe(parked_[i].frame, parked_[i].slices)) {
      Parked read = std::move(parked_[i]);
      parked_.erase(parked_.begin() + static_cast<std::ptrdiff_t>(i));
      if (freed_by >= 0) waits_.Add(now, read.since, read.frame.header.sender.index, freed_by);
      AnswerRead(now, read.frame, &read.slices, effects);
      spare_slices_.push_back(std::move(read.slices));
    } else {
      ++i;
    }
  }
  NotifyWaiting(now, effects);
}

// Tells each worker whom its read waits for. That keeps the worker's own deadline from running out. A push
// waits for one that is on its way; only in a replay it may wait for other workers.
void ShardCore::NotifyWaiting(absl::Time now, ShardEffects* effects) {
  const auto notify = [&](Parked* waits) {
    if (waits->next_notice > now) return;
    waits->next_notice = now + kNoticeInterval;
    for (const Slice& slice : waits->slices) {
      const Range* const range = owned_[slice.entry.range].get();
      if (slice.settled || range == nullptr) continue;
      const int awaited = Awaited(replay_.get(), *range, waits->frame.header.sender.index);
      SliceEntry e;
      e.range = slice.entry.range;
      e.row_floats = static_cast<uint32_t>(awaited);
      e.version = range->progress().workers[static_cast<size_t>(awaited)].admitted;
      e.clock = absl::ToInt64Milliseconds(now - waits->since);
      Say(effects, {waits->frame.header.sender,
                    EncodeDataFrame(buffers_, AnswerHeader(waits->frame, FrameKind::kWaiting),
                                    {&e, 1}, Buffer(), Buffer())});
      return;
    }
  };
  for (Parked& read : parked_) notify(&read);
  if (replay_ == nullptr) return;
  for (Parked& push : early_) notify(&push);
}

Activity ShardCore::Waiting(absl::Time now) const {
  if (parked_.empty() && (replay_ == nullptr || early_.empty())) return {};
  const Parked& read = parked_.empty() ? early_.front() : parked_.front();
  for (const Slice& slice : read.slices) {
    if (slice.settled) continue;
    const policies::RangeProgress& progress = owned_[slice.entry.range]->progress();
    const int slowest =
        Awaited(replay_.get(), *owned_[slice.entry.range], read.frame.header.sender.index);
    return {absl::StrCat(read.frame.header.sender.DebugString(), " waits for worker ", slowest,
                         " at step ", progress.workers[static_cast<size_t>(slowest)].admitted,
                         " since ", absl::ToInt64Seconds(now - read.since), " s"),
            EndpointId::Worker(slowest)};
  }
  return {};
}

// ---- pushes -----------------------------------------------------------------------------------
//
// Each slice of a push is settled by itself: held, applied, found to be a duplicate, or refused. A
// slice of a step whose predecessor has not come yet cannot be settled; its frame is kept as early,
// and tried again after each push. The push is acknowledged when all of its slices are settled.

void ShardCore::OnPush(absl::Time now, const ParsedFrame& frame, ShardEffects* effects) {
  std::string why;
  if (!CutSlices(frame, &slices_, &why)) {
    peer_log_.Add(absl::StrCat("refused (", why, "): ", frame.DebugString()), effects);
    return;
  }
  CheckOwners(&slices_);
  std::vector<Slice> slices;
  slices.swap(slices_);  // slices_ is scratch memory that admission may use for other frames
  if (AdmitSlices(now, frame, &slices, effects)) {
    Acknowledge(frame, slices, effects);
  } else {
    ParkEarly(now, frame, slices);
  }
  slices_.swap(slices);
  // Whatever became of the frame as a whole, some of its slices may have been admitted.
  GoOn(now, frame.header.sender.index, effects);
}

void ShardCore::ParkEarly(absl::Time now, const ParsedFrame& frame,
                          const std::vector<Slice>& slices) {
  size_t of_this_worker = 0;
  for (const Parked& push : early_) {
    if (push.frame.header.sender != frame.header.sender) continue;
    // Asked again while it waits: the parked frame answers for both.
    if (push.frame.header.request == frame.header.request) return;
    ++of_this_worker;
  }
  if (of_this_worker >= kMaxParkedPerWorker) return;
  early_.push_back({frame, KeepSlices(slices), now, now + kNoticeInterval});
}

// True if every slice is settled: held, applied or refused.
bool ShardCore::AdmitSlices(absl::Time now, const ParsedFrame& frame, std::vector<Slice>* slices,
                            ShardEffects* effects) {
  bool all = true;
  const bool may_hold = plan_.groups[frame.header.group].properties.holds;
  // A recorded run has kept to its budget; in a replay pushes come when they like, and wait.
  const bool over_budget = may_hold && replay_ == nullptr &&
                           (frame.header.flags & kFlagAssign) == 0 &&
                           held_bytes() + frame.keys().size() + frame.values().size() >
                               static_cast<size_t>(plan_.job.limits().held_bytes_per_shard());
  for (Slice& slice : *slices) {
    const Range* const range = owned_[slice.entry.range].get();
    const bool before = range != nullptr && Admitted(*range, frame.header);
    if (!slice.settled && over_budget && !before) {
      slice.entry.status = SliceStatus::kOverBudget;
      slice.settled = true;
    }
    if (!slice.settled) AdmitSlice(now, frame, &slice, effects);
    all = all && slice.settled;
  }
  return all;
}

void ShardCore::AdmitSlice(absl::Time now, const ParsedFrame& frame, Slice* slice,
                           ShardEffects* effects) {
  const FrameHeader& h = frame.header;
  SliceEntry& e = slice->entry;
  Range* const range = owned_[e.range].get();
  if (range == nullptr) {  // moved away while the frame was parked
    e.status = SliceStatus::kWrongView;
    slice->settled = true;
    return;
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
    return;
  }
  update.rank = h.sender.index;
  update.step = h.step;
  update.samples = h.samples;
  update.version_read = e.version;
  update.clock_gap = h.clock_gap;
  update.in_flight = h.in_flight;
  if (replay_ != nullptr && !Admitted(*range, h) &&
      !HasTurn(*replay_, *range, h, &update, effects)) {
    return;
  }
  switch (range->Admit(now, h.incarnation, h.first_step, std::move(update),
                       (h.flags & kFlagEndOfEpoch) != 0)) {
    case Range::Admission::kDuplicate:
      e.version = range->progress().version;
      // The answer that it came too late may have been lost.
      if (plan_.groups[h.group].properties.skips && h.samples > 0 && h.step < e.version) {
        e.status = SliceStatus::kDropped;
      }
      slice->settled = true;
      break;
    case Range::Admission::kLate:
      e.status = SliceStatus::kDropped;
      [[fallthrough]];
    case Range::Admission::kAdmitted:
      if (replay_ != nullptr) {
        replay_->OnAdmitted(e.range);
        replay_->ForgetAnswers(h.sender.index, h.step);
      }
      e.version = range->progress().version;
      slice->settled = true;
      break;
    case Range::Admission::kEarly:
      break;
    case Range::Admission::kRefused:
      e.status = SliceStatus::kRefused;
      slice->settled = true;
      peer_log_.Add(absl::StrCat("refused slice of range ", e.range, ": ", frame.DebugString()),
                    effects);
      break;
  }
}

void ShardCore::RetryEarly(absl::Time now, ShardEffects* effects) {
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t i = 0; i < early_.size(); ++i) {
      if (!AdmitSlices(now, early_[i].frame, &early_[i].slices, effects)) continue;
      Parked push = std::move(early_[i]);
      early_.erase(early_.begin() + static_cast<std::ptrdiff_t>(i));
      Acknowledge(push.frame, push.slices, effects);
      spare_slices_.push_back(std::move(push.slices));
      progress = true;
      break;
    }
  }
}

// What has come may be what others have waited for: pushes behind it, and reads. In a replay a read that
// is answered may in its turn be what a push has waited for.
void ShardCore::GoOn(absl::Time now, int freed_by, ShardEffects* effects) {
  uint64_t before = 0;
  do {
    before = replay_ == nullptr ? 0 : replay_->turns();
    RetryEarly(now, effects);
    // Before reads of this version are answered: of what they make dropped a later refresh tells.
    const size_t others = effects->out.size();
    FrameHeader header;
    header.sender = self_;
    header.view = view();
    header.incarnation = incarnation_;
    AppendRefreshes(
        header, absl::MakeSpan(owned_), [this](uint32_t group) { return MinClock(group); },
        buffers_, &refresh_rows_, &effects->out);
    for (size_t i = others; i < effects->out.size(); ++i) {
      bytes_.refresh += effects->out[i].frame.TotalBytes();
      effects->urgent = true;
    }
    ServeParked(now, freed_by, effects);
  } while (replay_ != nullptr && replay_->turns() != before);
}

// Lists only the slices that were not admitted, and those that came too late.
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
  delayed_finished_ = true;
  for (const auto& range : owned_) {
    if (range != nullptr) range->FinishDelayed();
  }
  Give(&records_, &order_, effects);
}

std::vector<Range*> ShardCore::OwnedRanges() {
  std::vector<Range*> ranges;
  for (const auto& range : owned_) {
    if (range != nullptr) ranges.push_back(range.get());
  }
  return ranges;
}

const Range* ShardCore::FindRange(uint32_t range) const {
  return range < owned_.size() ? owned_[range].get() : nullptr;
}

bool ShardCore::Settled() const {
  if (map_ == nullptr || !moves_.empty() || !arrivals_.empty()) return false;
  for (uint32_t id = 0; id < owned_.size(); ++id) {
    if ((map_->range(id).owner == self_) != (owned_[id] != nullptr)) return false;
  }
  return true;
}

size_t ShardCore::held_bytes() const {
  size_t total = 0;
  for (const auto& range : owned_) {
    if (range != nullptr) total += range->held_bytes();
  }
  return total;
}

ShardReport ShardCore::Report() const {
  ShardReport report;
  report.set_server(self_.index);
  report.set_shard(self_.shard);
  for (const auto& table : tables_) {
    TableReport* out = report.add_table();
    out->set_table(table->plan->name);
    const UpdateStats total = table->stats.Total();
    FillUpdates(total, out);
    FillDistribution(total.in_flight, out->mutable_in_flight_depth());
    for (const UpdateStats& worker : table->stats.workers) FillUpdates(worker, out->add_worker());
    for (const Measure& measure : table->stats.by_popularity) {
      FillDistribution(measure, out->add_by_popularity());
    }
    for (const auto& range : owned_) {
      if (range == nullptr || range->table().plan != table->plan) continue;
      if (IsFirstCopy(range->id())) {
        out->set_rows(out->rows() + static_cast<uint64_t>(range->store().size()));
      }
      out->set_bytes(out->bytes() + range->store().MemoryBytes());
    }
  }
  for (size_t rank = 0; rank < waits_.workers(); ++rank) {
    const absl::Span<const double> row = waits_.Row(rank);
    report.add_waiting()->mutable_seconds()->Assign(row.begin(), row.end());
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
