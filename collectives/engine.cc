#include "collectives/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/message.h"
#include "collectives/reduce.h"

namespace tandem::collectives {
namespace {

// Bytes that one op moves before the other links get their turn.
constexpr size_t kTurnBytes = 256 << 10;
constexpr size_t kFirstOperations = 8;

MessageHeader HeaderOf(const CollectiveCall& call, uint64_t number, size_t bytes) {
  MessageHeader header;
  header.primitive = call.primitive;
  header.algorithm = call.algorithm;
  header.type = call.type;
  header.op = call.op;
  header.number = number;
  header.count = call.count;
  header.bytes = bytes;
  header.root = call.root;
  header.called = call.called;
  return header;
}

absl::Status CheckCall(const CollectiveCall& call, int rank, int ranks) {
  const Schedule* s = call.schedule;
  if (s == nullptr || s->rank != rank || s->ranks != ranks) {
    return absl::InvalidArgumentError(absl::StrCat(
        PrimitiveName(call.primitive), ": the schedule is for rank ", s == nullptr ? -1 : s->rank,
        " of ", s == nullptr ? 0 : s->ranks, ", expected rank ", rank, " of ", ranks));
  }
  if (Reduces(call.primitive) && !Defined(call.op, call.type)) {
    return absl::InvalidArgumentError(absl::StrCat(PrimitiveName(call.primitive), ": ",
                                                   Name(call.op), " is not defined for ",
                                                   Name(call.type)));
  }
  if ((s->input > 0 && call.input == nullptr) || (s->output > 0 && call.output == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(PrimitiveName(call.primitive), ": no ",
                                                   call.input == nullptr ? "input" : "output",
                                                   " given"));
  }
  return absl::OkStatus();
}

const uint8_t* ConstBytes(const void* at) { return static_cast<const uint8_t*>(at); }

}  // namespace

// A message on its way to a peer.
struct CollectiveEngine::Outgoing {
  MessageHeader header;
  uint64_t operation = 0;
  const uint8_t* data = nullptr;
  size_t sent = 0;  // bytes of header and data that have left

  size_t size() const { return sizeof(header) + header.bytes; }
  // The part of the data that the link has not taken.
  absl::Span<const uint8_t> Unsent() const {
    const size_t gone = sent > sizeof(header) ? sent - sizeof(header) : 0;
    return {data + gone, static_cast<size_t>(header.bytes) - gone};
  }
};

struct CollectiveEngine::Peer {
  Link* link = nullptr;
  std::vector<Outgoing> queue;  // valid from `head` on
  size_t head = 0;
  bool in_message = false;          // the header of the current message is consumed
  size_t remaining = 0;             // bytes of the current message to be consumed
  uint64_t sent = 0, received = 0;  // messages

  bool HasQueue() const { return head < queue.size(); }
};

struct CollectiveEngine::Operation {
  CollectiveCall call;
  uint64_t number = 0;      // number of the operation on this rank
  uint64_t collective = 0;  // number on the wire, if it is a collective
  size_t element = 0;       // bytes of an element
  absl::Time deadline;
  absl::Duration limit;
  size_t step = 0, index = 0;  // the next op
  size_t done = 0;             // bytes of the next op that are done
  int pending = 0;             // sends that have not left
  bool ops_done = false;
  std::vector<uint8_t> scratch;

  uint8_t* At(const Piece& piece) {
    const size_t offset = static_cast<size_t>(piece.begin) * element;
    switch (piece.region) {
      case Region::kInput:
        // The schedule never writes its input (ValidateSchedule checks this), so the cast is safe.
        return const_cast<uint8_t*>(ConstBytes(call.input)) + offset;
      case Region::kOutput:
        return static_cast<uint8_t*>(call.output) + offset;
      case Region::kScratch:
        return scratch.data() + offset;
    }
    return nullptr;
  }
  size_t Bytes(const Piece& piece) const { return static_cast<size_t>(piece.count) * element; }
  const Op& Current() const { return call.schedule->steps[step].ops[index]; }
  bool PointToPoint() const { return call.primitive == Primitive::kPointToPoint; }
  // The header of a message of this operation. `message` is the number of the message between the
  // two ranks; only point-to-point operations use it.
  MessageHeader Header(size_t bytes, uint64_t message) const {
    MessageHeader header = HeaderOf(call, PointToPoint() ? message : collective, bytes);
    if (PointToPoint()) header.count = static_cast<int64_t>(bytes / element);
    return header;
  }
};

CollectiveEngine::CollectiveEngine(int rank, std::vector<Link*> links, const Options& options)
    : rank_(rank),
      ranks_(static_cast<int>(links.size())),
      peers_(links.size()),
      operations_(kFirstOperations),
      records_(static_cast<size_t>(std::max(1, options.records))) {
  TANDEM_CHECK(rank >= 0 && static_cast<size_t>(rank) < links.size());
  TANDEM_CHECK(options.records >= 1);
  for (size_t r = 0; r < links.size(); ++r) {
    TANDEM_CHECK((links[r] == nullptr) == (static_cast<int>(r) == rank));
    peers_[r].link = links[r];
  }
  fold_sources_.resize(links.size());
}

CollectiveEngine::~CollectiveEngine() = default;

// ---- Starting ---------------------------------------------------------------

// All checks come before the operation gets its number. Ranks match operations by these numbers, so
// a call that is refused must not use one up.
absl::StatusOr<uint64_t> CollectiveEngine::Start(const CollectiveCall& call, absl::Time now,
                                                 absl::Duration deadline) {
  TANDEM_RETURN_IF_ERROR(broken_);
  TANDEM_RETURN_IF_ERROR(CheckCall(call, rank_, ranks_));
  if (next_ - oldest_ == operations_.size()) operations_.Grow(oldest_, next_);
  const uint64_t number = next_++;
  Operation& op = operations_[number];
  op.call = call;
  op.number = number;
  op.collective = call.primitive == Primitive::kPointToPoint ? 0 : collectives_++;
  op.element = SizeOf(call.type);
  op.deadline = now + deadline;
  op.limit = deadline;
  op.step = op.index = op.done = 0;
  op.pending = 0;
  op.ops_done = false;
  const size_t scratch = static_cast<size_t>(call.schedule->scratch) * op.element;
  if (op.scratch.size() < scratch) op.scratch.resize(scratch);

  OperationRecord& record = records_[number];
  record = OperationRecord();
  record.number = number;
  record.primitive = call.primitive;
  record.algorithm = call.algorithm;
  record.type = call.type;
  record.op = call.op;
  record.root = call.root;
  record.count = call.count;
  record.called = now;
  record.begun = record.finished = absl::InfiniteFuture();
  (void)Progress(now);
  return number;
}

bool CollectiveEngine::Ended(uint64_t number) const {
  return number < oldest_ || (number < next_ && !broken_.ok());
}

absl::Status CollectiveEngine::Result(uint64_t number) const {
  TANDEM_CHECK(Ended(number));
  return number < oldest_ ? absl::OkStatus() : broken_;
}

// ---- Running ----------------------------------------------------------------

// Queued sends go first. Every queued send is older than the ops that are still to run, and an op
// that overwrites its bytes must wait for it to leave. The loop repeats because each of the two can
// make the other one possible. Operations finish inside the loop, but the failure is spread only
// after it, so that Fail runs once. Deadlines come last: an operation that has just finished cannot
// miss its deadline.
bool CollectiveEngine::Progress(absl::Time now) {
  if (!broken_.ok() || oldest_ == next_) return false;
  bool moved = false;
  for (bool more = true; more && broken_.ok();) {
    more = queued_ > 0 && FlushSends();
    more = RunOps(now) || more;
    moved = moved || more;
    FinishOperations(now);
  }
  if (!broken_.ok()) {
    Fail(broken_, now);
    return true;
  }
  if (moved || waiting_peer_ != noted_peer_) NoteWaiting(now);
  CheckDeadlines(now);
  return moved;
}

bool CollectiveEngine::FlushSends() {
  bool moved = false;
  for (int r = 0; r < ranks(); ++r) {
    if (peers_[r].HasQueue()) moved = Flush(r) || moved;
  }
  return moved;
}

bool CollectiveEngine::Flush(int r) {
  Peer& peer = peers_[r];
  bool moved = false;
  while (peer.HasQueue()) {
    Outgoing& out = peer.queue[peer.head];
    const size_t of_header = std::min(out.sent, sizeof(MessageHeader));
    const auto wrote = peer.link->Write(BytesOf(out.header).subspan(of_header), out.Unsent());
    if (!wrote.ok()) {
      LinkFailed(r, wrote.status());
      return moved;
    }
    out.sent += *wrote;
    moved = moved || *wrote > 0;
    if (out.sent < out.size()) return moved;
    --operations_[out.operation].pending;
    --queued_;
    ++peer.head;
  }
  peer.queue.clear();
  peer.head = 0;
  return moved;
}

// Hands a message to its link, or queues it. A message that finds a queue for its peer must go
// behind it, because a peer reads its messages in the order of the schedule.
void CollectiveEngine::Send(Operation& op, const Op& what) {
  Peer& peer = peers_[what.peer];
  Outgoing out;
  out.header = op.Header(op.Bytes(what.piece), peer.sent++);
  out.operation = op.number;
  out.data = op.At(what.piece);
  bytes_sent_ += out.header.bytes;
  records_[op.number].bytes_sent += static_cast<int64_t>(out.header.bytes);
  if (!peer.HasQueue()) {
    const auto wrote = peer.link->Write(BytesOf(out.header), out.Unsent());
    if (!wrote.ok()) return LinkFailed(what.peer, wrote.status());
    out.sent = *wrote;
    if (out.sent == out.size()) return;
  }
  peer.queue.push_back(out);
  ++op.pending;
  ++queued_;
}

// Runs ops in the schedule's order, operation after operation, until one op must wait. The op that
// waits stops all ops behind it: messages of one link are read in the order in which the peer sent
// them, and the checker has proved that this order never deadlocks. True if anything has moved.
bool CollectiveEngine::RunOps(absl::Time now) {
  bool moved = false;
  waiting_peer_ = -1;
  while (current_ < next_) {
    Operation& op = operations_[current_];
    OperationRecord& record = records_[op.number];
    if (record.begun == absl::InfiniteFuture()) record.begun = now;
    const std::vector<Step>& steps = op.call.schedule->steps;
    while (op.step < steps.size()) {
      if (op.index == steps[op.step].ops.size()) {
        ++op.step;
        op.index = 0;
        continue;
      }
      const Moved result = RunOp(op, op.Current());
      if (!broken_.ok()) return true;
      if (result != Moved::kDone) return moved || result == Moved::kSome;
      ++op.index;
      op.done = 0;
      moved = true;
    }
    op.ops_done = true;
    ++current_;
    moved = true;
  }
  return moved;
}

CollectiveEngine::Moved CollectiveEngine::RunOp(Operation& op, const Op& what) {
  switch (what.kind) {
    case OpKind::kSend:
      Send(op, what);
      return Moved::kDone;
    case OpKind::kReceive:
      return RunReceive(op, what);
    case OpKind::kReduce:
      return RunReduce(op, what);
    case OpKind::kFold:
      return RunFold(op, what);
    case OpKind::kCopy:
    case OpKind::kCombine:
      return RunLocal(op, what);
  }
  return Moved::kDone;
}

// How many of the `bytes` at `at` may be overwritten: only the bytes before the first one that must
// still be sent from there.
size_t CollectiveEngine::Writable(const uint8_t* at, size_t bytes) {
  if (queued_ == 0) return bytes;
  for (int r = 0; r < ranks(); ++r) {
    const Peer& peer = peers_[r];
    for (size_t i = peer.head; i < peer.queue.size(); ++i) {
      const absl::Span<const uint8_t> unsent = peer.queue[i].Unsent();
      if (unsent.empty() || unsent.data() >= at + bytes || unsent.data() + unsent.size() <= at) {
        continue;
      }
      bytes = unsent.data() <= at ? 0 : static_cast<size_t>(unsent.data() - at);
      if (bytes == 0) {
        Blocked(r, unsent.size(), 0);
        return 0;
      }
    }
  }
  return bytes;
}

void CollectiveEngine::Blocked(int peer, size_t bytes, size_t here) {
  waiting_peer_ = peer;
  waiting_bytes_ = bytes;
  waiting_here_ = here;
}

// Makes the next message of rank r the one being received. Its size must be `bytes`. False if the
// message has not arrived, or if it does not fit (the engine has failed then).
//
// The two errors of CheckMessage differ: DATA_LOSS means that the stream is garbage, which is a
// fault of the link. Any other error means that the ranks disagree, and names both of them.
bool CollectiveEngine::BeginMessage(Operation& op, int r, size_t bytes) {
  Peer& peer = peers_[r];
  if (peer.in_message) return true;
  const auto peeked = peer.link->Peek(sizeof(MessageHeader));
  if (!peeked.ok()) {
    LinkFailed(r, peeked.status());
    return false;
  }
  if (peeked->empty()) {
    Blocked(r, bytes, 0);
    return false;
  }
  absl::Status fits = CheckMessage(rank_, op.Header(bytes, peer.received), r, *peeked);
  if (absl::IsDataLoss(fits)) {
    LinkFailed(r, fits);
    return false;
  }
  if (!fits.ok()) {
    broken_ = std::move(fits);
    return false;
  }
  peer.link->Consume(sizeof(MessageHeader));
  ++peer.received;
  peer.in_message = true;
  peer.remaining = bytes;
  return true;
}

// Moves arrived bytes to their place. An op may return before it is done: the link is empty, the
// turn is over, or a queued send still needs the memory. op.done and peer.remaining say how far it
// is, and the next call continues there.
CollectiveEngine::Moved CollectiveEngine::RunReceive(Operation& op, const Op& what) {
  const size_t bytes = op.Bytes(what.piece);
  if (!BeginMessage(op, what.peer, bytes)) return Moved::kNothing;
  Peer& peer = peers_[what.peer];
  uint8_t* const to = op.At(what.piece);
  size_t turn = 0;
  while (peer.remaining > 0 && turn < kTurnBytes) {
    const size_t room = Writable(to + op.done, std::min(peer.remaining, kTurnBytes));
    if (room == 0) break;
    const auto read = peer.link->Read({to + op.done, room});
    if (!read.ok()) {
      LinkFailed(what.peer, read.status());
      return Moved::kNothing;
    }
    if (*read == 0) {
      Blocked(what.peer, bytes, op.done);
      break;
    }
    op.done += *read;
    peer.remaining -= *read;
    turn += *read;
  }
  if (peer.remaining > 0) return turn > 0 ? Moved::kSome : Moved::kNothing;
  peer.in_message = false;
  return Moved::kDone;
}

// As RunReceive, but adds the arrived bytes where they lie in the link. Only whole elements can be
// added. So the number of bytes is rounded down twice: the link may have part of an element, and
// the memory that may be overwritten may end within one.
CollectiveEngine::Moved CollectiveEngine::RunReduce(Operation& op, const Op& what) {
  const size_t bytes = op.Bytes(what.piece);
  if (!BeginMessage(op, what.peer, bytes)) return Moved::kNothing;
  Peer& peer = peers_[what.peer];
  uint8_t* const to = op.At(what.piece);
  const uint8_t* const operand = op.At(what.operand);
  size_t turn = 0;
  while (peer.remaining > 0 && turn < kTurnBytes) {
    const auto here = peer.link->Peek(op.element);
    if (!here.ok()) {
      LinkFailed(what.peer, here.status());
      return Moved::kNothing;
    }
    if (here->empty()) {
      Blocked(what.peer, bytes, op.done);
      break;
    }
    size_t n = std::min({here->size(), peer.remaining, kTurnBytes});
    n = Writable(to + op.done, n - n % op.element);
    n -= n % op.element;
    if (n == 0) break;
    Reduce(op.call.op, op.call.type, to + op.done, operand + op.done, here->data(), n / op.element);
    peer.link->Consume(n);
    op.done += n;
    peer.remaining -= n;
    turn += n;
  }
  if (peer.remaining > 0) return turn > 0 ? Moved::kSome : Moved::kNothing;
  peer.in_message = false;
  return Moved::kDone;
}

// Adds the contributions of several ranks in a fixed order, directly from the links. All messages
// must have begun before the first element is added: the order of additions is fixed, so every
// element needs all ranks at once. The step size is therefore the number of bytes that every rank
// has here.
CollectiveEngine::Moved CollectiveEngine::RunFold(Operation& op, const Op& what) {
  const std::vector<int>& order = op.call.schedule->folds[static_cast<size_t>(what.peer)];
  const size_t bytes = op.Bytes(what.piece);
  for (const int r : order) {
    if (r != rank_ && !BeginMessage(op, r, bytes)) return Moved::kNothing;
  }
  uint8_t* const to = op.At(what.piece);
  const uint8_t* const operand = op.At(what.operand);
  size_t turn = 0;
  while (op.done < bytes && turn < kTurnBytes) {
    size_t n = std::min(bytes - op.done, kTurnBytes);
    for (size_t i = 0; i < order.size() && n > 0; ++i) {
      if (order[i] == rank_) {
        fold_sources_[i] = operand + op.done;
        continue;
      }
      const auto here = peers_[order[i]].link->Peek(op.element);
      if (!here.ok()) {
        LinkFailed(order[i], here.status());
        return Moved::kNothing;
      }
      if (here->empty()) Blocked(order[i], bytes, op.done);
      fold_sources_[i] = here->data();
      n = std::min(n, here->size());
    }
    n = n > 0 ? Writable(to + op.done, n - n % op.element) : 0;
    n -= n % op.element;
    if (n == 0) break;
    FoldInOrder(op.call.op, op.call.type, to + op.done,
                absl::MakeConstSpan(fold_sources_).first(order.size()), n / op.element);
    for (const int r : order) {
      if (r == rank_) continue;
      peers_[r].link->Consume(n);
      peers_[r].remaining -= n;
    }
    op.done += n;
    turn += n;
  }
  if (op.done < bytes) return turn > 0 ? Moved::kSome : Moved::kNothing;
  for (const int r : order) peers_[r].in_message = false;
  return Moved::kDone;
}

CollectiveEngine::Moved CollectiveEngine::RunLocal(Operation& op, const Op& what) {
  const size_t bytes = op.Bytes(what.piece);
  uint8_t* const to = op.At(what.piece);
  const uint8_t* const from = op.At(what.operand);
  if (bytes == 0 || (what.kind == OpKind::kCopy && to == from)) return Moved::kDone;
  // Wait until the whole piece may be overwritten: the pieces may overlap, so a part of the copy
  // could destroy bytes that the rest still needs.
  if (Writable(to, bytes) < bytes) return Moved::kNothing;
  if (what.kind == OpKind::kCopy) {
    std::memmove(to, from, bytes);
  } else {
    Reduce(op.call.op, op.call.type, to, to, from, bytes / op.element);
  }
  return Moved::kDone;
}

// Ends operations in order, each when its ops are done and its last send has left. The factor of an
// average is applied here, where the result is complete.
void CollectiveEngine::FinishOperations(absl::Time now) {
  while (oldest_ < current_ && broken_.ok()) {
    Operation& op = operations_[oldest_];
    if (!op.ops_done || op.pending > 0) return;
    const CollectiveCall& call = op.call;
    const bool result_here = !HasRoot(call.primitive) || call.root == rank_;
    const bool average = Reduces(call.primitive) && call.op == ReduceOp::kAverage && result_here;
    if (average && AfterAverage(ranks()) != 1) {
      Scale(call.type, call.output, static_cast<size_t>(call.schedule->output),
            AfterAverage(ranks()));
    }
    records_[oldest_].finished = now;
    ++oldest_;
  }
}

// ---- Waiting and failing ----------------------------------------------------

// Books the wait that has just ended (the longest wait of an operation is recorded with its rank)
// and begins a new one. The end of a wait belongs to the current operation, or to the last one if
// all have ended.
void CollectiveEngine::NoteWaiting(absl::Time now) {
  if (noted_peer_ >= 0 && next_ > 0) {
    OperationRecord& record = records_[std::min(current_, next_ - 1)];
    const absl::Duration stretch = now - waiting_since_;
    if (stretch > record.waited) {
      record.waited = stretch;
      record.waited_rank = noted_peer_;
    }
  }
  noted_peer_ = waiting_peer_;
  waiting_since_ = now;
  if (waiting_peer_ >= 0) {
    records_[current_].last_wait_rank = waiting_peer_;
  }
}

void CollectiveEngine::CheckDeadlines(absl::Time now) {
  for (uint64_t n = oldest_; n < next_; ++n) {
    if (now < operations_[n].deadline) continue;
    const std::string text = absl::StrCat(
        PrimitiveName(operations_[n].call.primitive), " #", n, " on rank ", rank_,
        ": not done after ", absl::FormatDuration(operations_[n].limit), ": ", WaitingFor(now));
    absl::Status status = absl::DeadlineExceededError(text);
    if (waiting_peer_ >= 0) status = BlameOn(waiting_peer_, std::move(status));
    return Fail(std::move(status), now);
  }
}

absl::Time CollectiveEngine::NextDeadline() const {
  absl::Time next = absl::InfiniteFuture();
  if (!broken_.ok()) return next;
  for (uint64_t n = oldest_; n < next_; ++n) next = std::min(next, operations_[n].deadline);
  return next;
}

std::string CollectiveEngine::WaitingFor(absl::Time now) const {
  if (oldest_ == next_ || !broken_.ok()) return "";
  if (current_ == next_ || waiting_peer_ < 0) {
    return absl::StrCat(PrimitiveName(operations_[oldest_].call.primitive), " #", oldest_,
                        ": waits for its last sends to leave");
  }
  const Operation& op = operations_[current_];
  return absl::StrCat(PrimitiveName(op.call.primitive), " #", current_, ": waits ",
                      absl::FormatDuration(now - waiting_since_), " for rank ", waiting_peer_,
                      " (message of ", waiting_bytes_, " bytes, ", waiting_here_, " here) in step ",
                      op.step + 1, " of ", op.call.schedule->steps.size());
}

bool CollectiveEngine::WaitsForLink(int r) const {
  return r == waiting_peer_ || peers_[static_cast<size_t>(r)].HasQueue();
}

void CollectiveEngine::LinkFailed(int peer, const absl::Status& status) {
  broken_ = PeerLostError(peer, status.message());
}

void CollectiveEngine::Fail(absl::Status why, absl::Time now) {
  TANDEM_CHECK(!why.ok());
  broken_ = std::move(why);
  for (uint64_t n = oldest_; n < next_; ++n) {
    OperationRecord& record = records_[n];
    if (record.failed) continue;
    record.failed = true;
    record.finished = now;
  }
  for (Peer& peer : peers_) peer.queue.clear();
  queued_ = 0;
}

std::vector<OperationRecord> CollectiveEngine::Records() const {
  std::vector<OperationRecord> out;
  const uint64_t kept = std::min<uint64_t>(next_, records_.size());
  for (uint64_t n = next_ - kept; n < next_; ++n) out.push_back(records_[n]);
  return out;
}

}  // namespace tandem::collectives
