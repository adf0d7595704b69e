#include "collectives/legacy/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optim/fold.h"

namespace tandem {
inline namespace legacy {
namespace {

constexpr size_t kMaxAbortText = 1024;  // bytes of a peer's reason that we repeat
constexpr int kMaxWaitsNamed = 4;

// What an early segment costs beside its values, so that empty ones are bounded too.
constexpr int64_t kEarlyOverheadBytes = 128;

size_t Bytes(Piece piece) { return static_cast<size_t>(piece.count) * sizeof(float); }

// memcpy does not take null, which empty pieces may have.
void CopyBytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

SegmentKind KindOf(const ParsedFrame& segment) {
  return static_cast<SegmentKind>(segment.header.flags);
}

// Text from a peer, cut and made printable.
std::string PrintableText(const Buffer& bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()),
                   std::min(bytes.size(), kMaxAbortText));
  for (char& c : text) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

absl::StatusCode CodeFromPeer(int64_t code) {
  return code >= 1 && code <= 16 ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

}  // namespace

CollectiveEngine::CollectiveEngine(int rank, int ranks, BufferSource& source,
                                   const CollectiveOptions& options)
    : rank_(rank),
      ranks_(ranks),
      source_(source),
      options_(options),
      next_(options.first_operation),
      floor_(options.first_operation),
      slots_(2 * static_cast<size_t>(std::max(options.max_in_flight, 1))),
      peer_floor_(static_cast<size_t>(ranks), options.first_operation) {
  TANDEM_CHECK(0 <= rank && rank < ranks);
  TANDEM_CHECK(options.max_in_flight >= 1);
}

CollectiveEngine::~CollectiveEngine() = default;

bool CollectiveEngine::Remembers(uint64_t number) const {
  const Operation& op = SlotOf(number);
  return op.state != Operation::State::kUnused && op.number == number;
}

bool CollectiveEngine::Running(uint64_t number) const {
  return Remembers(number) && SlotOf(number).state == Operation::State::kRunning;
}

// ---- Starting ---------------------------------------------------------------

absl::Status CollectiveEngine::CheckStart(uint64_t number, const Schedule& schedule,
                                          absl::Span<float> data) const {
  if (number != next_) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation ", number, " on rank ", rank_, ": the next one is number ", next_));
  }
  if (number - floor_ >= static_cast<uint64_t>(options_.max_in_flight)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("operation ", number, " on rank ", rank_, ": operation ", floor_,
                     " is not complete, and at most ", options_.max_in_flight, " may run"));
  }
  TANDEM_RETURN_IF_ERROR(ValidateSchedule(schedule));
  if (schedule.rank != rank_ || schedule.ranks != ranks_ ||
      schedule.count != static_cast<int64_t>(data.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "operation ", number, ": schedule of rank ", schedule.rank, " of ", schedule.ranks, " for ",
        schedule.count, " elements, on rank ", rank_, " of ", ranks_, " with ", data.size()));
  }
  for (const Step& step : schedule.steps) {
    for (const Op& op : step.ops) {
      if (op.kind != OpKind::kSend || Bytes(op.piece) <= kMaxPartBytes) continue;
      return absl::InvalidArgumentError(absl::StrCat("operation ", number, ": a message of ",
                                                     Bytes(op.piece), " bytes, at most ",
                                                     kMaxPartBytes));
    }
  }
  return absl::OkStatus();
}

absl::Status CollectiveEngine::Start(uint64_t number, const Schedule* schedule,
                                     absl::Span<float> data, absl::Time now,
                                     absl::Duration deadline, CollectiveEffects* effects) {
  TANDEM_RETURN_IF_ERROR(broken_);
  TANDEM_RETURN_IF_ERROR(CheckStart(number, *schedule, data));
  Operation& op = SlotOf(number);
  TANDEM_CHECK(op.state != Operation::State::kRunning);
  op.Begin(number, schedule, data);
  op.deadline = deadline;
  op.deadline_at = now + deadline;
  op.waiting_since = now;
  op.next_ask = early_dropped_ ? now : now + options_.resend_after;
  early_dropped_ = false;
  ++next_;
  ++running_;
  if (absl::Status status = AdoptEarly(op); !status.ok()) {
    Fail(std::move(status), effects);
    return absl::OkStatus();  // the completion says it
  }
  Advance(op, now, effects);
  return absl::OkStatus();
}

absl::Status CollectiveEngine::AdoptEarly(Operation& op) {
  absl::Status status;
  const auto adopt = [&](EarlySegment& early) {
    if (early.number != op.number) return false;
    early_bytes_ -= static_cast<int64_t>(early.values.size()) + kEarlyOverheadBytes;
    if (early.count != op.data.size()) {
      status.Update(CountMismatch(op.number, op.data.size(), early.from, early.count));
    } else {
      status.Update(op.Deliver(early.from, early.message, early.values));
    }
    return true;
  };
  early_.erase(std::remove_if(early_.begin(), early_.end(), adopt), early_.end());
  return status;
}

absl::Status CollectiveEngine::CountMismatch(uint64_t number, uint64_t mine, int from,
                                             uint64_t theirs) const {
  return absl::InvalidArgumentError(absl::StrCat("operation ", number, ": rank ", rank_, " has ",
                                                 mine, " elements, rank ", from, " has ", theirs));
}

// ---- Doing what the schedule says -------------------------------------------

void CollectiveEngine::Advance(Operation& op, absl::Time now, CollectiveEffects* effects) {
  while (op.step < op.schedule->steps.size()) {
    if (!op.step_sent) SendStep(op, effects);
    if (!ApplyStep(op, now)) return;
    op.EnterNextStep();
  }
  Finish(op, effects);
}

void CollectiveEngine::SendStep(Operation& op, CollectiveEffects* effects) {
  const std::vector<Op>& ops = op.CurrentStep().ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].kind != OpKind::kSend) continue;
    const int slot = op.SlotOfOp(i);
    Buffer values = source_.Alloc(Bytes(ops[i].piece));
    CopyBytes(values.mutable_data(), op.At(ops[i].piece).data(), values.size());
    op.sent[slot] = Encode(SegmentKind::kData, op.number, op.sends.Number(ops[i].peer, slot),
                           op.data.size(), std::move(values));
    effects->sends.push_back({ops[i].peer, op.sent[slot]});
  }
  op.step_sent = true;
}

bool CollectiveEngine::ApplyStep(Operation& op, absl::Time now) {
  const std::vector<Op>& ops = op.CurrentStep().ops;
  for (; op.op < ops.size(); ++op.op) {
    if (!ApplyOp(op, ops[op.op], op.SlotOfOp(op.op), now)) return false;
  }
  return true;
}

bool CollectiveEngine::ApplyOp(Operation& op, const Op& what, int slot, absl::Time now) {
  if (what.kind == OpKind::kSend) return true;
  const absl::Span<float> target = op.At(what.piece);
  if (what.kind == OpKind::kSetAside) {
    op.aside = source_.Alloc(Bytes(what.piece));
    CopyBytes(op.aside.mutable_data(), target.data(), op.aside.size());
    return true;
  }
  if (what.kind == OpKind::kAddAside) {
    FoldAdd(target.data(), op.aside.As<float>().data(), target.size());
    return true;
  }
  Operation::Incoming& in = op.incoming[slot];
  if (!in.arrived) return false;
  if (what.kind == OpKind::kReduce) {
    FoldAdd(target.data(), in.values.As<float>().data(), target.size());
  } else {
    CopyBytes(target.data(), in.values.data(), in.values.size());
  }
  in.values = Buffer();
  op.waiting_since = now;
  op.next_ask = now + options_.resend_after;
  return true;
}

void CollectiveEngine::Finish(Operation& op, CollectiveEffects* effects) {
  op.End();
  --running_;
  while (floor_ < next_ && !Running(floor_)) ++floor_;
  effects->completions.push_back({op.number, absl::OkStatus()});
  // Ranks to which we send learn from the next operation that this one has ended; the others now.
  for (int rank = 0; rank < ranks_; ++rank) {
    if (op.receives.size(rank) == 0 || op.sends.size(rank) > 0) continue;
    effects->sends.push_back({rank, Encode(SegmentKind::kFinished, op.number, 0, op.data.size())});
  }
}

// ---- What other ranks say ---------------------------------------------------

absl::Status CollectiveEngine::OnSegment(int from, const ParsedFrame& segment, absl::Time now,
                                         CollectiveEffects* effects) {
  TANDEM_RETURN_IF_ERROR(CheckSender(from, segment));
  if (!broken_.ok()) {
    AnswerFailed(from, segment, effects);
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(LearnFloor(from, segment.header.first_step));
  switch (KindOf(segment)) {
    case SegmentKind::kData:
      return OnData(from, segment, now, effects);
    case SegmentKind::kAsk:
      return OnAsk(from, segment, effects);
    case SegmentKind::kFinished:
      return absl::OkStatus();
    case SegmentKind::kAbort:
      OnAbort(from, segment, effects);
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("segment of unknown kind ", segment.header.flags, " from rank ", from));
}

absl::Status CollectiveEngine::CheckSender(int from, const ParsedFrame& segment) const {
  if (segment.header.kind != FrameKind::kSegment) {
    return absl::InvalidArgumentError(absl::StrCat("frame of kind ",
                                                   static_cast<int>(segment.header.kind),
                                                   " from rank ", from, " is no segment"));
  }
  if (from < 0 || from >= ranks_ || from == rank_) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment from rank ", from, " to rank ", rank_, " in a group of ", ranks_));
  }
  if (segment.header.group != options_.group) {
    return absl::FailedPreconditionError(absl::StrCat("segment from rank ", from, " is of group ",
                                                      segment.header.group, ", this is group ",
                                                      options_.group));
  }
  return absl::OkStatus();
}

// `from` has finished all operations below `floor`: it needs nothing of them any more.
absl::Status CollectiveEngine::LearnFloor(int from, int64_t floor) {
  const uint64_t limit = next_ + slots_.size();
  if (floor < 0 || static_cast<uint64_t>(floor) > limit) {
    return absl::OutOfRangeError(absl::StrCat("rank ", from,
                                              " says that it has finished operations"
                                              " below ",
                                              floor, ", rank ", rank_, " has started those below ",
                                              next_));
  }
  for (uint64_t n = peer_floor_[from]; n < static_cast<uint64_t>(floor); ++n) {
    if (Remembers(n)) SlotOf(n).DropSent(from);
  }
  peer_floor_[from] = std::max(peer_floor_[from], static_cast<uint64_t>(floor));
  return absl::OkStatus();
}

absl::Status CollectiveEngine::OnData(int from, const ParsedFrame& segment, absl::Time now,
                                      CollectiveEffects* effects) {
  const uint64_t number = segment.header.request;
  if (number >= next_) {
    if (number - next_ >= static_cast<uint64_t>(options_.max_in_flight)) {
      return absl::OutOfRangeError(absl::StrCat(
          "segment of operation ", number, " from rank ", from, ": rank ", rank_, " is at ", next_,
          ", and a rank may be at most ", options_.max_in_flight, " ahead"));
    }
    KeepEarly(from, segment);
    return absl::OkStatus();
  }
  if (!Remembers(number)) return absl::OkStatus();  // a copy that took very long
  Operation& op = SlotOf(number);
  if (segment.header.samples != op.data.size()) {
    Fail(CountMismatch(number, op.data.size(), from, segment.header.samples), effects);
    return absl::OkStatus();  // the completion says it
  }
  if (!Running(number)) return absl::OkStatus();  // a copy
  TANDEM_RETURN_IF_ERROR(op.Deliver(from, segment.header.step, segment.values()));
  Advance(op, now, effects);
  return absl::OkStatus();
}

void CollectiveEngine::KeepEarly(int from, const ParsedFrame& segment) {
  const int64_t bytes = static_cast<int64_t>(segment.values().size()) + kEarlyOverheadBytes;
  if (early_bytes_ + bytes > options_.max_early_bytes) {
    early_dropped_ = true;
    return;
  }
  early_bytes_ += bytes;
  early_.push_back({segment.header.request, from, segment.header.step, segment.header.samples,
                    segment.values()});
}

absl::Status CollectiveEngine::OnAsk(int from, const ParsedFrame& segment,
                                     CollectiveEffects* effects) {
  const uint64_t number = segment.header.request;
  if (number >= next_ || !Remembers(number)) return absl::OkStatus();  // not yet, or an old ask
  Operation& op = SlotOf(number);
  if (segment.header.samples != op.data.size()) {
    Fail(CountMismatch(number, op.data.size(), from, segment.header.samples), effects);
    return absl::OkStatus();
  }
  const int slot = op.sends.Slot(from, segment.header.step);
  if (slot < 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", from, " asks for message ",
                                                   segment.header.step, " of operation ", number,
                                                   ", of which it is sent ", op.sends.size(from)));
  }
  if (op.sent[slot].parts > 0) effects->sends.push_back({from, op.sent[slot]});
  return absl::OkStatus();
}

// ---- Waiting ----------------------------------------------------------------

void CollectiveEngine::OnTick(absl::Time now, CollectiveEffects* effects) {
  for (uint64_t number = floor_; number < next_; ++number) {
    if (!Running(number)) continue;
    Operation& op = SlotOf(number);
    if (now >= op.deadline_at) {
      Fail(absl::DeadlineExceededError(
               absl::StrCat("operation ", number, " on rank ", rank_, ": not done after ",
                            absl::FormatDuration(op.deadline), ": ", Waits(op, now))),
           effects);
      return;
    }
    if (now >= op.next_ask) AskAgain(op, now, effects);
  }
}

absl::Time CollectiveEngine::NextTick() const {
  absl::Time next = absl::InfiniteFuture();
  for (uint64_t number = floor_; number < next_; ++number) {
    if (!Running(number)) continue;
    next = std::min({next, SlotOf(number).deadline_at, SlotOf(number).next_ask});
  }
  return next;
}

void CollectiveEngine::AskAgain(Operation& op, absl::Time now, CollectiveEffects* effects) {
  op.next_ask = now + options_.resend_after;
  const std::vector<Op>& ops = op.CurrentStep().ops;
  for (size_t i = op.op; i < ops.size(); ++i) {
    if (!ops[i].FromPeer() || op.incoming[op.SlotOfOp(i)].arrived) continue;
    const int64_t message = op.receives.Number(ops[i].peer, op.SlotOfOp(i));
    effects->sends.push_back(
        {ops[i].peer, Encode(SegmentKind::kAsk, op.number, message, op.data.size())});
  }
}

std::string CollectiveEngine::Waits(const Operation& op, absl::Time now) const {
  std::string out = absl::StrCat("waits ", absl::FormatDuration(now - op.waiting_since), " for ");
  const std::vector<Op>& ops = op.CurrentStep().ops;
  int named = 0;
  for (size_t i = op.op; i < ops.size(); ++i) {
    if (!ops[i].FromPeer() || op.incoming[op.SlotOfOp(i)].arrived) continue;
    if (named++ == kMaxWaitsNamed) return out + ", and more";
    absl::StrAppend(&out, named > 1 ? ", " : "", "rank ", ops[i].peer, " (message ",
                    op.receives.Number(ops[i].peer, op.SlotOfOp(i)), ", elements ",
                    ops[i].piece.DebugString(), ")");
  }
  return absl::StrCat(out, " in step ", op.step + 1, " of ", op.schedule->steps.size());
}

std::string CollectiveEngine::WaitingFor(absl::Time now) const {
  if (running_ == 0) return "";
  return absl::StrCat("operation ", floor_, ": ", Waits(SlotOf(floor_), now));
}

// ---- Failing ----------------------------------------------------------------

void CollectiveEngine::OnPeerLost(int rank, absl::string_view why, CollectiveEffects* effects) {
  if (!broken_.ok()) return;
  Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " is lost: ", why)), effects);
}

void CollectiveEngine::OnAbort(int from, const ParsedFrame& segment, CollectiveEffects* effects) {
  FailSilently(
      absl::Status(CodeFromPeer(segment.header.step),
                   absl::StrCat("rank ", from, " gave up: ", PrintableText(segment.values()))),
      effects);
}

void CollectiveEngine::Fail(absl::Status status, CollectiveEffects* effects) {
  FailSilently(std::move(status), effects);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank != rank_) effects->sends.push_back({rank, EncodeAbort()});
  }
}

void CollectiveEngine::FailSilently(absl::Status status, CollectiveEffects* effects) {
  broken_ = std::move(status);
  for (; floor_ < next_; ++floor_) {
    if (!Running(floor_)) continue;
    SlotOf(floor_).End();
    effects->completions.push_back({floor_, broken_});
  }
  running_ = 0;
  for (Operation& op : slots_) op.DropAllSent();
  early_.clear();
  early_bytes_ = 0;
}

// A rank that still asks has not heard that the group has failed.
void CollectiveEngine::AnswerFailed(int to, const ParsedFrame& segment,
                                    CollectiveEffects* effects) {
  if (KindOf(segment) != SegmentKind::kAsk) return;
  effects->sends.push_back({to, EncodeAbort()});
}

Frame CollectiveEngine::EncodeAbort() {
  const absl::string_view text = broken_.message().substr(0, kMaxAbortText);
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  return Encode(SegmentKind::kAbort, floor_, static_cast<int64_t>(broken_.raw_code()), 0,
                CopyToBuffer(source_, {bytes, text.size()}));
}

// ---- Frames -----------------------------------------------------------------

Frame CollectiveEngine::Encode(SegmentKind kind, uint64_t number, int64_t message, uint64_t count,
                               Buffer values) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.flags = static_cast<uint8_t>(kind);
  header.sender = EndpointId::Worker(rank_);
  header.view = options_.view;
  header.incarnation = options_.incarnation;
  header.request = number;
  header.first_step = static_cast<int64_t>(floor_);
  header.step = message;
  header.group = options_.group;
  header.samples = count;
  return EncodeDataFrame(source_, header, {}, Buffer(), std::move(values));
}

}  // namespace legacy
}  // namespace tandem
