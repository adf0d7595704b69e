#include "rdma/connection.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::rdma {
namespace {

uint64_t Bit(int slot) { return uint64_t{1} << slot; }

void SetParts(const Frame& frame, RdmaMessage* message) {
  message->parts = static_cast<uint16_t>(frame.parts);
  for (int i = 0; i < frame.parts; ++i) message->part_bytes[i] = frame.part[i].size();
}

// The size of the message that carries the whole frame.
size_t MessageBytes(const Frame& frame) {
  size_t bytes = kRdmaHeadBytes;
  for (int i = 0; i < frame.parts; ++i) bytes += PadTo8(frame.part[i].size());
  return bytes;
}

// Writes the parts that travel in the message, behind its head.
void CopyParts(const Frame& frame, const RdmaMessage& message, uint8_t* to) {
  to += message.HeadBytes();
  for (int i = 0; i < frame.parts; ++i) {
    const Buffer& part = frame.part[i];
    if (part.empty() || message.part_key[i] != 0) continue;
    const size_t padding = PadTo8(part.size()) - part.size();
    std::memcpy(to, part.data(), part.size());
    if (padding > 0) std::memset(to + part.size(), 0, padding);
    to += part.size() + padding;
  }
}

}  // namespace

// ---- construction and end ----

uint32_t RdmaConnection::ReceivesPerPeer(const RdmaHello& shape) {
  // One buffer for each message that carries a frame (one for each credit). More buffers for
  // messages without a frame: credits are given back in two halves, and each slot and each offer
  // may be answered by a message of its own. And one batch more, because buffers are posted again
  // in batches, and messages may come before that.
  return shape.credits + 4u + static_cast<uint32_t>(shape.slots()) + kMaxRdmaOffers +
         kRdmaReceiveBatch;
}

absl::StatusOr<std::unique_ptr<RdmaConnection>> RdmaConnection::New(const RdmaShared& shared,
                                                                    rdma_cm_id* id,
                                                                    RdmaPathCounters* counters) {
  std::unique_ptr<RdmaConnection> connection(new RdmaConnection(shared, id, counters));
  absl::Status made = connection->inbox_.Open(shared.waker);
  if (made.ok()) made = connection->requests_.Create(id, *shared.memory, shared.cq, shared.srq);
  if (made.ok()) return connection;
  connection->id_ = nullptr;  // the id stays the caller's
  return made;
}

RdmaConnection::RdmaConnection(const RdmaShared& shared, rdma_cm_id* id, RdmaPathCounters* counters)
    : shared_(shared),
      counters_(counters),
      id_(id),
      requests_(shared.send_depth),
      inbox_({shared.shape, shared.lend_all}, shared.memory, shared.small_blocks, &requests_,
             &control_, &counters->received),
      offers_(shared.memory.get(), &requests_, &control_, &counters->staged) {
  control_.Reserve(kMaxRdmaOffers * (kMaxFrameParts + 1));
}

// The order is required. First all requests are stopped, so that the device does not touch our
// memory any more. Memory windows are bound to the queue pair and go before it
// (RdmaOffers::DropWindows). The ring and the registrations go after it, because nothing can use
// them any more.
RdmaConnection::~RdmaConnection() {
  const bool has_queue_pair = id_ != nullptr && id_->qp != nullptr;
  if (has_queue_pair) requests_.Stop();
  offers_.DropWindows();
  if (has_queue_pair) rdma_destroy_qp(id_);
  inbox_.Revoke();
  offers_.DropRegions();
  if (id_ != nullptr) rdma_destroy_id(id_);
}

void RdmaConnection::SetPeer(const RdmaHello& peer) {
  peer_ = peer;
  credits_ = peer.credits;
  free_slots_ = peer.slots() == 64 ? ~uint64_t{0} : Bit(peer.slots()) - 1;
  const size_t most = peer.large_slot_bytes;
  rendezvous_bytes_ =
      shared_.rendezvous_bytes == 0 ? most : std::min(most, shared_.rendezvous_bytes);
  requests_.Stage(shared_.memory.get(), peer.message_bytes);
}

absl::Status RdmaConnection::Open() {
  TANDEM_RETURN_IF_ERROR(requests_.Staged());
  open_ = true;
  TANDEM_RETURN_IF_ERROR(Probe());
  return Pump();
}

void RdmaConnection::Disconnect() {
  open_ = false;
  // A failure means nothing here: the connection may be broken already.
  rdma_disconnect(id_);
  inbox_.Revoke();
}

// ---- sending ----

absl::Status RdmaConnection::Send(Frame&& frame) {
  // Nothing waits before this frame, so it may skip the queue.
  if (open_ && queue_.empty() && control_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool sent, TrySendFrame(&frame));
    if (sent) return absl::OkStatus();
  }
  QueueFrame(std::move(frame));
  return Pump();
}

void RdmaConnection::QueueFrame(Frame&& frame) { queue_.Push({std::move(frame), false}); }
void RdmaConnection::QueueGoodbye() { queue_.Push({Frame(), true}); }

// Makes the head of a message. The head gives back to the peer all credits and slots that are free.
RdmaMessage RdmaConnection::NewMessage(RdmaMessageKind kind) {
  RdmaMessage message;
  message.kind = kind;
  inbox_.GiveBack(&message);
  return message;
}

// Sends what waits, in this order: control messages first, because the peer needs them to release
// its memory; then reads of offered frames; then frames. Frames stop at the first one that cannot
// be sent, so they keep their order.
absl::Status RdmaConnection::Pump() {
  if (!open_ || (queue_.empty() && control_.empty() && !inbox_.reading())) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(PumpControl());
  TANDEM_RETURN_IF_ERROR(inbox_.PumpReads());
  while (!queue_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool sent, TrySend(&queue_.front()));
    if (!sent) break;
    queue_.Pop();
  }
  return absl::OkStatus();
}

// False if there is no credit, room or slot now: try again when something is given back.
absl::StatusOr<bool> RdmaConnection::TrySend(Outgoing* next) {
  if (next->goodbye) {
    if (credits_ == 0 || !requests_.HasRoom(1)) return false;
    TANDEM_RETURN_IF_ERROR(SendGoodbye());
    return true;
  }
  return TrySendFrame(&next->frame);
}

// Chooses the path of a frame. Small frames go first of all as one SEND, but not if a part is in
// another device's memory, which the processor must not copy. Large frames are offered, unless one
// message could carry them. All others go into a slot of the ring.
absl::StatusOr<bool> RdmaConnection::TrySendFrame(Frame* frame) {
  if (credits_ == 0 || !requests_.HasRoom(1)) return false;
  const size_t bytes = MessageBytes(*frame);
  if (bytes <= peer_.message_bytes) {
    TANDEM_RETURN_IF_ERROR(SendSmall(*frame, bytes));
    return true;
  }
  if (bytes > rendezvous_bytes_ && bytes > peer_.message_bytes) {
    if (!offers_.HasRoom()) return false;
    TANDEM_RETURN_IF_ERROR(SendOffer(frame));
    return true;
  }
  const int slot = FreeSlotFor(bytes);
  if (slot < 0) return false;
  TANDEM_RETURN_IF_ERROR(SendToSlot(std::move(*frame), slot));
  return true;
}

absl::Status RdmaConnection::SendGoodbye() {
  --credits_;
  EncodeRdmaHead(NewMessage(RdmaMessageKind::kGoodbye), requests_.PlaceFor(kRdmaHeadBytes));
  return PostMessage(kRdmaHeadBytes, RdmaWork::Kind::kGoodbye);
}

// Copies the frame into staging memory, so that its buffers are free at once.
absl::Status RdmaConnection::SendSmall(const Frame& frame, size_t bytes) {
  --credits_;
  ++counters_->small;
  RdmaMessage message = NewMessage(RdmaMessageKind::kFrame);
  SetParts(frame, &message);
  uint8_t* const to = requests_.PlaceFor(bytes);
  EncodeRdmaHead(message, to);
  CopyParts(frame, message, to);
  return PostMessage(bytes, RdmaWork::Kind::kMessage);
}

// A free slot for the frame: a small one if the frame fits and one is free, else a large one; -1 if
// there is none.
int RdmaConnection::FreeSlotFor(size_t bytes) const {
  const uint64_t small = Bit(peer_.small_slots) - 1;
  uint64_t fitting = free_slots_ & ~small;
  if (bytes <= peer_.small_slot_bytes && (free_slots_ & small) != 0) fitting = free_slots_ & small;
  return fitting == 0 ? -1 : std::countr_zero(fitting);
}

absl::Status RdmaConnection::SendToSlot(Frame&& frame, int slot) {
  --credits_;
  ++counters_->ring;
  free_slots_ &= ~Bit(slot);
  RdmaMessage message = NewMessage(RdmaMessageKind::kFrame);
  SetParts(frame, &message);
  bool gathered = true;
  uint32_t pieces = 1;
  for (int i = 0; i < frame.parts; ++i) {
    const Buffer& part = frame.part[i];
    gathered = gathered && (part.empty() || shared_.memory->Find(part.data(), part.size()));
    pieces += part.size() % 8 == 0 ? 1 : 2;
  }
  return gathered && pieces <= requests_.max_pieces()
             ? WriteGathered(std::move(frame), slot, message)
             : WriteStaged(frame, slot, message);
}

absl::Status RdmaConnection::WriteGathered(Frame&& frame, int slot, const RdmaMessage& message) {
  uint8_t* const head = requests_.NextPlace();
  EncodeRdmaHead(message, head);
  uint8_t* const zeros = head + kRdmaHeadBytes;
  std::memset(zeros, 0, 8);
  ibv_sge pieces[RdmaSendQueue::kWantedPieces];
  size_t count = 0;
  const auto add = [&](const uint8_t* data, size_t bytes, uint32_t key) {
    pieces[count++] = {reinterpret_cast<uintptr_t>(data), static_cast<uint32_t>(bytes), key};
  };
  add(head, kRdmaHeadBytes, requests_.local_key());
  for (int i = 0; i < frame.parts; ++i) {
    const Buffer& part = frame.part[i];
    if (part.empty()) continue;
    add(part.data(), part.size(), shared_.memory->Find(part.data(), part.size())->lkey);
    if (part.size() % 8 != 0) add(zeros, PadTo8(part.size()) - part.size(), requests_.local_key());
  }
  return PostWrite(absl::MakeSpan(pieces, count), slot, std::move(frame));
}

absl::Status RdmaConnection::WriteStaged(const Frame& frame, int slot, const RdmaMessage& message) {
  Frame whole;
  whole.parts = 1;
  whole.part[0] = shared_.memory->Alloc(message.TotalBytes());
  Buffer& bytes = whole.part[0];
  const ibv_mr* const region = shared_.memory->Find(bytes.data(), bytes.size());
  if (region == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refuses to register ", bytes.size(), " bytes to send from"));
  }
  EncodeRdmaHead(message, bytes.mutable_data());
  CopyParts(frame, message, bytes.mutable_data());
  counters_->staged += frame.TotalBytes();
  ibv_sge piece = {reinterpret_cast<uintptr_t>(bytes.data()), static_cast<uint32_t>(bytes.size()),
                   region->lkey};
  return PostWrite(absl::MakeSpan(&piece, 1), slot, std::move(whole));
}

absl::Status RdmaConnection::PostWrite(absl::Span<ibv_sge> pieces, int slot, Frame&& frame) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(pieces.size());
  request.imm_data = htonl(static_cast<uint32_t>(slot));
  request.wr.rdma.remote_addr = peer_.ring_address + peer_.SlotOffset(slot);
  request.wr.rdma.rkey = peer_.ring_key;
  in_slots_.Push(std::move(frame));
  return requests_.Post(&request, {.kind = RdmaWork::Kind::kFrame});
}

absl::Status RdmaConnection::SendOffer(Frame* frame) {
  RdmaMessage message;
  TANDEM_ASSIGN_OR_RETURN(const Frame* const offered, offers_.Add(frame, &message));
  inbox_.GiveBack(&message);
  --credits_;
  ++counters_->offered;
  const size_t bytes = message.TotalBytes();
  uint8_t* const to = requests_.PlaceFor(bytes);
  EncodeRdmaHead(message, to);
  CopyParts(*offered, message, to);
  return PostMessage(bytes, RdmaWork::Kind::kMessage);
}

absl::Status RdmaConnection::PumpControl() {
  while (!control_.empty() && requests_.HasRoomForControl()) {
    const RdmaControl control = control_.Pop();
    if (control.kind == RdmaControl::Kind::kDone) {
      RdmaMessage message = NewMessage(RdmaMessageKind::kDone);
      message.token = control.token;
      EncodeRdmaHead(message, requests_.PlaceFor(kRdmaHeadBytes));
      TANDEM_RETURN_IF_ERROR(PostMessage(kRdmaHeadBytes, RdmaWork::Kind::kMessage));
      continue;
    }
    ibv_send_wr request = {};
    request.opcode = IBV_WR_LOCAL_INV;
    request.send_flags = IBV_SEND_SIGNALED;
    request.invalidate_rkey = control.key;
    TANDEM_RETURN_IF_ERROR(
        requests_.Post(&request, {.kind = RdmaWork::Kind::kInvalidate, .number = control.offer}));
  }
  return absl::OkStatus();
}

absl::Status RdmaConnection::GiveBack() {
  if (!open_ || !requests_.HasRoomForControl()) return absl::OkStatus();
  if (!inbox_.PeerIsShort()) return absl::OkStatus();
  ++counters_->gives;
  EncodeRdmaHead(NewMessage(RdmaMessageKind::kCredit), requests_.PlaceFor(kRdmaHeadBytes));
  return PostMessage(kRdmaHeadBytes, RdmaWork::Kind::kMessage);
}

absl::Status RdmaConnection::Probe() {
  if (requests_.AwaitsReport()) return absl::OkStatus();
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_.ring_address;
  request.wr.rdma.rkey = peer_.ring_key;
  return requests_.Post(&request, {.kind = RdmaWork::Kind::kProbe, .posted = Clock::now()});
}

void RdmaConnection::OnProbe(Clock::time_point posted) {
  if (shared_.rendezvous_bytes != 0) return;
  const std::chrono::duration<double> round_trip = Clock::now() - posted;
  const double bytes = round_trip.count() * shared_.memory->copy_rate();
  const size_t least = peer_.small_slot_bytes, most = peer_.large_slot_bytes;
  rendezvous_bytes_ =
      bytes >= static_cast<double>(most) ? most : std::max(least, static_cast<size_t>(bytes));
}

absl::Status RdmaConnection::OnSent(const ibv_wc& wc, std::vector<RdmaDelivery>* out) {
  if (wc.status != IBV_WC_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("the connection broke: ", ibv_wc_status_str(wc.status), " (vendor code ",
                     wc.vendor_err, ")"));
  }
  requests_.Complete(wc.wr_id, [&](const RdmaWork& work) { Finish(work, out); });
  return Pump();
}

void RdmaConnection::Finish(const RdmaWork& work, std::vector<RdmaDelivery>* out) {
  switch (work.kind) {
    case RdmaWork::Kind::kFrame:
      in_slots_.Pop();
      break;
    case RdmaWork::Kind::kGoodbye:
      goodbye_left_ = true;
      break;
    case RdmaWork::Kind::kInvalidate:
      offers_.KeyGone(work.number);
      break;
    case RdmaWork::Kind::kRead:
      inbox_.OnRead(work.number, out);
      break;
    case RdmaWork::Kind::kProbe:
      OnProbe(work.posted);
      break;
    case RdmaWork::Kind::kMessage:
    case RdmaWork::Kind::kBind:
      break;
  }
}

// ---- receiving ----

absl::Status RdmaConnection::OnReceived(const ibv_wc& wc, absl::Span<const uint8_t> bytes,
                                        std::vector<RdmaDelivery>* out) {
  if ((wc.wc_flags & IBV_WC_WITH_IMM) == 0) return OnMessage(bytes.first(wc.byte_len), -1, out);
  const uint32_t slot = ntohl(wc.imm_data);
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<uint8_t> written, inbox_.Take(slot, wc.byte_len));
  return OnMessage(written, static_cast<int>(slot), out);
}

// The order of the checks matters. A message that needs a credit uses it even if it is garbage:
// otherwise a peer could send garbage without limit. Credits and slots that the message gives back
// are taken before its content is handled, because an answer may need them. A slot without a frame
// is released at once.
absl::Status RdmaConnection::OnMessage(absl::Span<const uint8_t> bytes, int slot,
                                       std::vector<RdmaDelivery>* out) {
  const absl::StatusOr<RdmaMessage> message = DecodeRdmaMessage(bytes, shared_.max_part_bytes);
  const bool counts = !message.ok() || (message->kind != RdmaMessageKind::kDone &&
                                        message->kind != RdmaMessageKind::kCredit);
  if (counts) TANDEM_RETURN_IF_ERROR(inbox_.UseCredit());
  if (message.ok()) TANDEM_RETURN_IF_ERROR(TakeBack(*message));
  if (slot >= 0 && (!message.ok() || message->kind != RdmaMessageKind::kFrame)) {
    inbox_.Release(slot);
    if (message.ok()) return RdmaViolation("a message in the ring that is not a frame");
  }
  if (!message.ok()) {
    RdmaDelivery* const garbage = inbox_.Arrive(out);
    garbage->kind = RdmaDelivery::Kind::kGarbage;
    garbage->why = message.status();
    return absl::OkStatus();
  }
  switch (message->kind) {
    case RdmaMessageKind::kFrame:
      inbox_.OnFrame(*message, bytes, slot, &inbox_.Arrive(out)->frame);
      break;
    case RdmaMessageKind::kOffer:
      TANDEM_RETURN_IF_ERROR(inbox_.OnOffer(*message, bytes, out));
      break;
    case RdmaMessageKind::kDone:
      TANDEM_RETURN_IF_ERROR(offers_.OnDone(message->token));
      break;
    case RdmaMessageKind::kGoodbye:
      inbox_.Arrive(out)->kind = RdmaDelivery::Kind::kGoodbye;
      break;
    case RdmaMessageKind::kCredit:
      break;
  }
  return Pump();
}

absl::Status RdmaConnection::TakeBack(const RdmaMessage& message) {
  const uint64_t all = peer_.slots() == 64 ? ~uint64_t{0} : Bit(peer_.slots()) - 1;
  if ((message.freed & (free_slots_ | ~all)) != 0)
    return RdmaViolation("it frees slots not in use");
  if (message.credits + credits_ > peer_.credits)
    return RdmaViolation("it gives back too many credits");
  free_slots_ |= message.freed;
  credits_ += message.credits;
  return absl::OkStatus();
}

}  // namespace tandem::rdma
