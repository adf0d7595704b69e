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

namespace tandem {
namespace {

constexpr uint32_t kControlReserve = 16;  // work requests that frames leave to control messages
constexpr uint32_t kSignalEvery = 8;      // the device reports one message in so many as done
constexpr size_t kInlinePart = 512;  // parts of an offered frame up to this travel in the offer
constexpr size_t kReadBytes = size_t{4} << 20;  // of one read; devices bound the size of a message
constexpr uint32_t kWantedPieces = 2 * kMaxFrameParts;

uint64_t Bit(int slot) { return uint64_t{1} << slot; }

absl::Status Refused(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::Status Violation(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer breaks the protocol: ", what));
}

void SetParts(const Frame& frame, RdmaMessage* message) {
  message->parts = static_cast<uint16_t>(frame.parts);
  for (int i = 0; i < frame.parts; ++i) message->part_bytes[i] = frame.part[i].size();
}

// Bytes of the message that carries the frame whole.
size_t MessageBytes(const Frame& frame) {
  size_t bytes = kRdmaHeadBytes;
  for (int i = 0; i < frame.parts; ++i) bytes += PadTo8(frame.part[i].size());
  return bytes;
}

// Writes the parts that travel in the message behind its head.
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

// ---- life ----

uint32_t RdmaConnection::ReceivesPerPeer(const RdmaHello& shape) {
  // Buffers for messages that carry frames (one a credit), and for those that do not: credits come
  // back in two halves, each slot and each offer may be answered by a message of its own; and for
  // messages that come before the buffers of earlier ones are posted again, in batches.
  return shape.credits + 4u + static_cast<uint32_t>(shape.slots()) + kMaxRdmaOffers +
         kRdmaReceiveBatch;
}

absl::StatusOr<std::unique_ptr<RdmaConnection>> RdmaConnection::New(const RdmaShared& shared,
                                                                    rdma_cm_id* id,
                                                                    RdmaPathCounters* counters) {
  std::unique_ptr<RdmaConnection> connection(new RdmaConnection(shared, id, counters));
  absl::Status made = connection->Init();
  if (made.ok()) return connection;
  connection->id_ = nullptr;  // stays the caller's
  return made;
}

absl::Status RdmaConnection::Init() {
  TANDEM_ASSIGN_OR_RETURN(ring_, RdmaRing::New(shared_.memory, shared_.shape, shared_.waker));
  granted_ = shared_.shape.credits;
  work_.Reserve(shared_.send_depth);
  control_.Reserve(kMaxRdmaOffers * (kMaxFrameParts + 1));
  arrivals_.Reserve(granted_);
  return CreateQueuePair();
}

absl::Status RdmaConnection::CreateQueuePair() {
  max_pieces_ = std::min<uint32_t>(kWantedPieces,
                                   static_cast<uint32_t>(shared_.memory->attributes().max_sge));
  int error = 0;
  // A device does not say how many bytes it takes inline: try sizes until it accepts one.
  for (const uint32_t inline_bytes : {512u, 256u, 128u, 0u}) {
    ibv_qp_init_attr attributes = {};
    attributes.send_cq = attributes.recv_cq = shared_.cq;
    attributes.srq = shared_.srq;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = shared_.send_depth;
    attributes.cap.max_send_sge = max_pieces_;
    attributes.cap.max_inline_data = inline_bytes;
    if (rdma_create_qp(id_, shared_.memory->pd(), &attributes) == 0) {
      max_inline_ = inline_bytes;
      return absl::OkStatus();
    }
    error = errno;
  }
  return Refused("the device gives no queue pair", error);
}

// Ends all work requests that are under way, so that no device touches our memory any more.
void RdmaConnection::StopQueuePair() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(id_->qp, &attributes, IBV_QP_STATE);  // it may be there already
}

RdmaConnection::~RdmaConnection() {
  const bool has_queue_pair = id_ != nullptr && id_->qp != nullptr;
  if (has_queue_pair) StopQueuePair();
  // Windows go before the queue pair that they are bound to. Otherwise destroying the queue pair
  // may wait for them (with Soft-RoCE for most of a minute).
  for (Offer& offer : offers_) {
    for (Key& key : offer.keys) {
      if (key.window != nullptr) ibv_dealloc_mw(key.window);
    }
  }
  for (ibv_mw* const window : windows_) ibv_dealloc_mw(window);
  if (has_queue_pair) rdma_destroy_qp(id_);
  if (ring_ != nullptr) ring_->Revoke();
  for (Offer& offer : offers_) {
    for (Key& key : offer.keys) {
      if (key.region != nullptr) ibv_dereg_mr(key.region);
    }
  }
  if (id_ != nullptr) rdma_destroy_id(id_);
}

void RdmaConnection::SetPeer(const RdmaHello& peer) {
  peer_ = peer;
  credits_ = peer.credits;
  free_slots_ = peer.slots() == 64 ? ~uint64_t{0} : Bit(peer.slots()) - 1;
  const size_t most = peer.large_slot_bytes;
  rendezvous_bytes_ =
      shared_.rendezvous_bytes == 0 ? most : std::min(most, shared_.rendezvous_bytes);
  staging_ = shared_.memory->Alloc((size_t{shared_.send_depth} + 1) * peer.message_bytes);
  staging_mr_ = shared_.memory->Find(staging_.data(), staging_.size());
}

absl::Status RdmaConnection::Open() {
  if (staging_mr_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system refuses to register ", staging_.size(),
                     " bytes to send from; is the locked-memory limit (ulimit -l) high enough?"));
  }
  open_ = true;
  TANDEM_RETURN_IF_ERROR(Probe());
  return Pump();
}

void RdmaConnection::Disconnect() {
  open_ = false;
  // The connection may be broken already, so a failure here means nothing.
  rdma_disconnect(id_);
  ring_->Revoke();
}

// ---- sending ----

absl::Status RdmaConnection::Send(Frame&& frame) {
  if (open_ && queue_.empty() && control_.empty()) {  // nothing waits before it
    TANDEM_ASSIGN_OR_RETURN(const bool sent, TrySendFrame(&frame));
    if (sent) return absl::OkStatus();
  }
  QueueFrame(std::move(frame));
  return Pump();
}

void RdmaConnection::QueueFrame(Frame&& frame) { queue_.Push({std::move(frame), false}); }
void RdmaConnection::QueueGoodbye() { queue_.Push({Frame(), true}); }

bool RdmaConnection::HasRoom(uint32_t requests) const {
  return work_.size() + requests + kControlReserve <= shared_.send_depth;
}

uint8_t* RdmaConnection::Staging(uint32_t place) {
  return staging_.mutable_data() + place * size_t{peer_.message_bytes};
}

// Messages are written into staging memory, one place a work request. The device copies an inline
// message while it is posted, so its place is free again at once: all of those share the last
// place.
uint8_t* RdmaConnection::PlaceFor(size_t bytes) {
  return Staging(bytes <= max_inline_ ? shared_.send_depth : staging_next_);
}

absl::Status RdmaConnection::Post(ibv_send_wr* request, const Work& work) {
  TANDEM_CHECK(work_.size() < shared_.send_depth);
  request->wr_id = work_.next_number();
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(id_->qp, request, &bad); error != 0) {
    return absl::UnavailableError(absl::StrCat("ibv_post_send: ", std::strerror(error)));
  }
  work_.Push(work);
  if ((request->send_flags & IBV_SEND_SIGNALED) != 0) signalled_ = work_.next_number();
  if (++staging_next_ == shared_.send_depth) staging_next_ = 0;
  return absl::OkStatus();
}

// Sends what lies at PlaceFor(bytes). That a small message is done matters only for its place in
// the staging memory, which is needed again send_depth requests later. So the device is asked to
// report one message in kSignalEvery; a report means that all earlier requests are done, too.
absl::Status RdmaConnection::PostMessage(size_t bytes, Work::Kind kind) {
  ibv_sge piece = {reinterpret_cast<uintptr_t>(PlaceFor(bytes)), static_cast<uint32_t>(bytes),
                   staging_mr_->lkey};
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  const bool tell =
      kind != Work::Kind::kMessage || work_.next_number() - signalled_ + 1 >= kSignalEvery;
  if (tell) request.send_flags |= IBV_SEND_SIGNALED;
  if (bytes <= max_inline_) {
    request.send_flags |= IBV_SEND_INLINE;
    ++counters_->inlined;
  }
  return Post(&request, {.kind = kind});
}

// The head of a message, which gives back to the peer all credits and slots that are free.
RdmaMessage RdmaConnection::NewMessage(RdmaMessageKind kind) {
  RdmaMessage message;
  message.kind = kind;
  message.credits = static_cast<uint16_t>(owed_);
  granted_ += std::exchange(owed_, 0);
  message.freed = ring_->GrantReleased();
  return message;
}

absl::Status RdmaConnection::Pump() {
  if (!open_ || (queue_.empty() && control_.empty() && offers_here_ == 0)) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(PumpControl());
  TANDEM_RETURN_IF_ERROR(PumpReads());
  while (!queue_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const bool sent, TrySend(&queue_.front()));
    if (!sent) break;
    queue_.Pop();
  }
  return absl::OkStatus();
}

// False: no credit, room or slot now; try again when something comes back.
absl::StatusOr<bool> RdmaConnection::TrySend(Outgoing* next) {
  if (next->goodbye) {
    if (credits_ == 0 || !HasRoom(1)) return false;
    TANDEM_RETURN_IF_ERROR(SendGoodbye());
    return true;
  }
  return TrySendFrame(&next->frame);
}

absl::StatusOr<bool> RdmaConnection::TrySendFrame(Frame* frame) {
  if (credits_ == 0 || !HasRoom(1)) return false;
  const size_t bytes = MessageBytes(*frame);
  const bool elsewhere = std::any_of(
      frame->part, frame->part + frame->parts,
      [this](const Buffer& part) { return shared_.memory->OnOtherDevice(part.data()); });
  if (bytes <= peer_.message_bytes && !elsewhere) {
    TANDEM_RETURN_IF_ERROR(SendSmall(*frame, bytes));
    return true;
  }
  if (bytes > rendezvous_bytes_ && bytes > peer_.message_bytes) return TryOffer(frame);
  const int slot = FreeSlotFor(bytes);
  if (slot < 0) return false;
  TANDEM_RETURN_IF_ERROR(SendToSlot(std::move(*frame), slot));
  return true;
}

absl::Status RdmaConnection::SendGoodbye() {
  --credits_;
  EncodeRdmaHead(NewMessage(RdmaMessageKind::kGoodbye), PlaceFor(kRdmaHeadBytes));
  return PostMessage(kRdmaHeadBytes, Work::Kind::kGoodbye);
}

// Copies the frame into staging memory, so that its buffers are free at once.
absl::Status RdmaConnection::SendSmall(const Frame& frame, size_t bytes) {
  --credits_;
  ++counters_->small;
  RdmaMessage message = NewMessage(RdmaMessageKind::kFrame);
  SetParts(frame, &message);
  uint8_t* const to = PlaceFor(bytes);
  EncodeRdmaHead(message, to);
  CopyParts(frame, message, to);
  return PostMessage(bytes, Work::Kind::kMessage);
}

// A free slot of the smaller size if the frame fits and there is one, else of the larger size; -1
// if there is none.
int RdmaConnection::FreeSlotFor(size_t bytes) const {
  const uint64_t small = Bit(peer_.small_slots) - 1;
  uint64_t fitting = free_slots_ & ~small;
  if (bytes <= peer_.small_slot_bytes && (free_slots_ & small) != 0) fitting = free_slots_ & small;
  return fitting == 0 ? -1 : std::countr_zero(fitting);
}

absl::Status RdmaConnection::SendToSlot(Frame&& frame, int slot) {
  --credits_;
  ++frames_posted_;
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
  return gathered && pieces <= max_pieces_ ? WriteGathered(std::move(frame), slot, message)
                                           : WriteStaged(frame, slot, message);
}

absl::Status RdmaConnection::WriteGathered(Frame&& frame, int slot, const RdmaMessage& message) {
  uint8_t* const head = Staging(staging_next_);
  EncodeRdmaHead(message, head);
  uint8_t* const zeros = head + kRdmaHeadBytes;
  std::memset(zeros, 0, 8);
  ibv_sge pieces[kWantedPieces];
  size_t count = 0;
  const auto add = [&](const uint8_t* data, size_t bytes, const ibv_mr* region) {
    pieces[count++] = {reinterpret_cast<uintptr_t>(data), static_cast<uint32_t>(bytes),
                       region->lkey};
  };
  add(head, kRdmaHeadBytes, staging_mr_);
  for (int i = 0; i < frame.parts; ++i) {
    const Buffer& part = frame.part[i];
    if (part.empty()) continue;
    add(part.data(), part.size(), shared_.memory->Find(part.data(), part.size()));
    if (part.size() % 8 != 0) add(zeros, PadTo8(part.size()) - part.size(), staging_mr_);
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
  return Post(&request, {.kind = Work::Kind::kFrame});
}

// ---- offers ----

absl::StatusOr<bool> RdmaConnection::TryOffer(Frame* frame) {
  Offer* const offer =
      std::find_if(offers_, offers_ + kMaxRdmaOffers, [](const Offer& o) { return !o.used; });
  if (offer == offers_ + kMaxRdmaOffers || !HasRoom(kMaxFrameParts + 1)) return false;
  TANDEM_RETURN_IF_ERROR(StageParts(frame));
  offer->used = true;
  offer->keys_left = 0;
  offer->token = next_token_;
  if (++next_token_ == 0) ++next_token_;  // 0 is no token
  offer->frame = std::move(*frame);
  RdmaMessage message;
  SetParts(offer->frame, &message);
  for (int i = 0; i < offer->frame.parts; ++i) {
    const Buffer& part = offer->frame.part[i];
    if (part.size() <= kInlinePart) continue;
    TANDEM_RETURN_IF_ERROR(MakeKey(part, &offer->keys[i]));
    ++offer->keys_left;
    message.part_key[i] = offer->keys[i].key;
    message.part_address[i] = reinterpret_cast<uintptr_t>(part.data());
  }
  const RdmaMessage head = NewMessage(RdmaMessageKind::kOffer);
  message.kind = head.kind;
  message.credits = head.credits;
  message.freed = head.freed;
  message.token = offer->token;
  --credits_;
  ++frames_posted_;
  ++counters_->offered;
  const size_t bytes = message.TotalBytes();
  uint8_t* const to = PlaceFor(bytes);
  EncodeRdmaHead(message, to);
  CopyParts(offer->frame, message, to);
  TANDEM_RETURN_IF_ERROR(PostMessage(bytes, Work::Kind::kMessage));
  return true;
}

// The peer can read only registered memory: large parts that lie elsewhere are copied into it.
absl::Status RdmaConnection::StageParts(Frame* frame) {
  for (int i = 0; i < frame->parts; ++i) {
    Buffer& part = frame->part[i];
    if (part.size() <= kInlinePart || shared_.memory->Find(part.data(), part.size())) continue;
    Buffer copy = shared_.memory->Alloc(part.size());
    if (shared_.memory->Find(copy.data(), copy.size()) == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refuses to register ", part.size(), " bytes to send from"));
    }
    std::memcpy(copy.mutable_data(), part.data(), part.size());
    counters_->staged += part.size();
    part = std::move(copy);
  }
  return absl::OkStatus();
}

// A key for the peer to exactly these bytes.
absl::Status RdmaConnection::MakeKey(const Buffer& part, Key* key) {
  if (!shared_.memory->has_windows()) {
    const int access = IBV_ACCESS_REMOTE_READ;
    key->region =
        ibv_reg_mr(shared_.memory->pd(), const_cast<uint8_t*>(part.data()), part.size(), access);
    if (key->region == nullptr) return Refused("ibv_reg_mr", errno);
    key->key = key->region->rkey;
    return absl::OkStatus();
  }
  if (windows_.empty()) {
    ibv_mw* const made = ibv_alloc_mw(shared_.memory->pd(), IBV_MW_TYPE_2);
    if (made == nullptr) return Refused("ibv_alloc_mw", errno);
    windows_.push_back(made);
  }
  key->window = windows_.back();
  windows_.pop_back();
  key->key = ibv_inc_rkey(key->window->rkey);
  ibv_send_wr request = {};
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = IBV_SEND_SIGNALED;
  request.bind_mw.mw = key->window;
  request.bind_mw.rkey = key->key;
  request.bind_mw.bind_info = {shared_.memory->Find(part.data(), part.size()),
                               reinterpret_cast<uintptr_t>(part.data()), part.size(),
                               IBV_ACCESS_REMOTE_READ};
  TANDEM_RETURN_IF_ERROR(Post(&request, {.kind = Work::Kind::kBind}));
  key->window->rkey = key->key;  // only now: ibv_post_send needs the old one
  return absl::OkStatus();
}

absl::Status RdmaConnection::OnDone(uint32_t token) {
  // An offer whose keys are being taken back has token 0, which therefore answers none.
  Offer* const offer = std::find_if(offers_, offers_ + kMaxRdmaOffers, [token](const Offer& o) {
    return o.used && token != 0 && o.token == token && o.keys_left > 0;
  });
  if (offer == offers_ + kMaxRdmaOffers) return Violation("it has read what was not offered");
  offer->token = 0;  // so that a second kDone for it is a violation
  const auto index = static_cast<uint64_t>(offer - offers_);
  for (Key& key : offer->keys) {
    if (key.window != nullptr) {
      control_.Push({Control::Kind::kInvalidate, 0, index, key.key});
    } else if (key.region != nullptr) {
      TANDEM_CHECK(ibv_dereg_mr(std::exchange(key.region, nullptr)) == 0);
      KeyGone(index);
    }
  }
  return absl::OkStatus();
}

// One key of an offer is invalid now. When all are, nobody can read the frame any more, and its
// buffers are released.
void RdmaConnection::KeyGone(uint64_t index) {
  Offer& offer = offers_[index];
  if (--offer.keys_left > 0) return;
  for (Key& key : offer.keys) {
    if (key.window != nullptr) windows_.push_back(key.window);
    key = Key();
  }
  offer.frame = Frame();
  offer.used = false;
  --frames_posted_;
}

absl::Status RdmaConnection::PumpControl() {
  while (!control_.empty() && work_.size() < shared_.send_depth) {
    const Control control = control_.Pop();
    if (control.kind == Control::Kind::kDone) {
      RdmaMessage message = NewMessage(RdmaMessageKind::kDone);
      message.token = control.token;
      EncodeRdmaHead(message, PlaceFor(kRdmaHeadBytes));
      TANDEM_RETURN_IF_ERROR(PostMessage(kRdmaHeadBytes, Work::Kind::kMessage));
      continue;
    }
    ibv_send_wr request = {};
    request.opcode = IBV_WR_LOCAL_INV;
    request.send_flags = IBV_SEND_SIGNALED;
    request.invalidate_rkey = control.key;
    TANDEM_RETURN_IF_ERROR(
        Post(&request, {.kind = Work::Kind::kInvalidate, .number = control.offer}));
  }
  return absl::OkStatus();
}

absl::Status RdmaConnection::GiveBack() {
  if (!open_ || work_.size() >= shared_.send_depth) return absl::OkStatus();
  if (2 * owed_ < shared_.shape.credits && !ring_->PeerIsShort()) return absl::OkStatus();
  ++counters_->gives;
  EncodeRdmaHead(NewMessage(RdmaMessageKind::kCredit), PlaceFor(kRdmaHeadBytes));
  return PostMessage(kRdmaHeadBytes, Work::Kind::kMessage);
}

absl::Status RdmaConnection::Probe() {
  if (signalled_ > work_.front_number()) return absl::OkStatus();
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = peer_.ring_address;
  request.wr.rdma.rkey = peer_.ring_key;
  return Post(&request, {.kind = Work::Kind::kProbe, .posted = Clock::now()});
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
  while (work_.front_number() <= wc.wr_id) Finish(work_.Pop(), out);
  return Pump();
}

void RdmaConnection::Finish(const Work& work, std::vector<RdmaDelivery>* out) {
  switch (work.kind) {
    case Work::Kind::kFrame:
      in_slots_.Pop();
      --frames_posted_;
      break;
    case Work::Kind::kGoodbye:
      goodbye_left_ = true;
      break;
    case Work::Kind::kInvalidate:
      KeyGone(work.number);
      break;
    case Work::Kind::kRead:
      OnRead(work.number, out);
      break;
    case Work::Kind::kProbe:
      OnProbe(work.posted);
      break;
    case Work::Kind::kMessage:
    case Work::Kind::kBind:
      break;
  }
}

// ---- receiving ----

absl::Status RdmaConnection::OnReceived(const ibv_wc& wc, absl::Span<const uint8_t> bytes,
                                        std::vector<RdmaDelivery>* out) {
  if ((wc.wc_flags & IBV_WC_WITH_IMM) == 0) return OnMessage(bytes.first(wc.byte_len), -1, out);
  const uint32_t slot = ntohl(wc.imm_data);
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<uint8_t> written, ring_->Take(slot, wc.byte_len));
  return OnMessage(written, static_cast<int>(slot), out);
}

absl::Status RdmaConnection::OnMessage(absl::Span<const uint8_t> bytes, int slot,
                                       std::vector<RdmaDelivery>* out) {
  const absl::StatusOr<RdmaMessage> message = DecodeRdmaMessage(bytes, shared_.max_part_bytes);
  const bool counts = !message.ok() || (message->kind != RdmaMessageKind::kDone &&
                                        message->kind != RdmaMessageKind::kCredit);
  if (counts && granted_ == 0) return Violation("more messages than it may send");
  if (counts) --granted_;
  if (message.ok()) TANDEM_RETURN_IF_ERROR(TakeBack(*message));
  if (slot >= 0 && (!message.ok() || message->kind != RdmaMessageKind::kFrame)) {
    ring_->Release(slot);
    if (message.ok()) return Violation("a message in the ring that is not a frame");
  }
  if (!message.ok()) {
    RdmaDelivery* const garbage = Arrive(out);
    garbage->kind = RdmaDelivery::Kind::kGarbage;
    garbage->why = message.status();
    return absl::OkStatus();
  }
  switch (message->kind) {
    case RdmaMessageKind::kFrame:
      OnFrame(*message, bytes, slot, &Arrive(out)->frame);
      break;
    case RdmaMessageKind::kOffer:
      TANDEM_RETURN_IF_ERROR(OnOffer(*message, bytes, out));
      break;
    case RdmaMessageKind::kDone:
      TANDEM_RETURN_IF_ERROR(OnDone(message->token));
      break;
    case RdmaMessageKind::kGoodbye:
      Arrive(out)->kind = RdmaDelivery::Kind::kGoodbye;
      break;
    case RdmaMessageKind::kCredit:
      break;
  }
  return Pump();
}

absl::Status RdmaConnection::TakeBack(const RdmaMessage& message) {
  const uint64_t all = peer_.slots() == 64 ? ~uint64_t{0} : Bit(peer_.slots()) - 1;
  if ((message.freed & (free_slots_ | ~all)) != 0) return Violation("it frees slots not in use");
  if (message.credits + credits_ > peer_.credits)
    return Violation("it gives back too many credits");
  free_slots_ |= message.freed;
  credits_ += message.credits;
  return absl::OkStatus();
}

void RdmaConnection::OnFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes, int slot,
                             Frame* frame) {
  if (slot < 0) return CopyFrame(message, bytes, frame);
  const bool more_parts = message.TotalBytes() > message.PartOffset(1);
  if (more_parts && (shared_.lend_all || ring_->MayLend(slot))) {
    ++counters_->lent;
    LendFrame(message, bytes, slot, frame);
  } else {
    ++counters_->copied_out;
    CopyFrame(message, bytes, frame);
    ring_->Release(slot);
  }
}

Buffer RdmaConnection::CopyBytes(absl::Span<const uint8_t> bytes) {
  if (bytes.size() > RdmaSmallBlock::kBytes) return CopyToBuffer(*shared_.memory, bytes);
  RdmaSmallBlock* const block = shared_.small_blocks->Take();
  if (block->bytes.empty()) block->bytes = shared_.memory->Alloc(RdmaSmallBlock::kBytes);
  std::memcpy(block->bytes.mutable_data(), bytes.data(), bytes.size());
  return Buffer(block, block->bytes.mutable_data(), bytes.size());
}

void RdmaConnection::CopyFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                               Frame* frame) {
  const Buffer copy = CopyBytes(bytes.subspan(message.HeadBytes()));
  frame->parts = message.parts;
  size_t at = 0;
  for (int i = 0; i < frame->parts; ++i) {
    if (message.part_bytes[i] == 0 || message.part_key[i] != 0) continue;
    frame->part[i] = copy.Slice(at, message.part_bytes[i]);
    at += PadTo8(message.part_bytes[i]);
  }
}

// The frame's parts stay in the slot, but for part 0, the header: it is checked once and then
// trusted, and the peer could still write into the slot.
void RdmaConnection::LendFrame(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                               int slot, Frame* frame) {
  frame->parts = message.parts;
  if (message.part_bytes[0] > 0) {
    frame->part[0] = CopyBytes(bytes.subspan(message.PartOffset(0), message.part_bytes[0]));
  }
  const Buffer whole = ring_->Lend(slot);
  for (int i = 1; i < frame->parts; ++i) {
    if (message.part_bytes[i] == 0) continue;
    frame->part[i] = whole.Slice(message.PartOffset(i), message.part_bytes[i]);
  }
}

absl::Status RdmaConnection::OnOffer(const RdmaMessage& message, absl::Span<const uint8_t> bytes,
                                     std::vector<RdmaDelivery>* out) {
  if (++offers_here_ > kMaxRdmaOffers) return Violation("too many frames offered at once");
  Arrival arrival;
  arrival.offered = true;
  arrival.offer = message;
  CopyFrame(message, bytes, &arrival.delivery.frame);
  bool any = false;
  for (int i = 0; i < message.parts; ++i) {
    if (message.part_key[i] == 0) continue;
    any = true;
    Buffer& part = arrival.delivery.frame.part[i] = shared_.memory->Alloc(message.part_bytes[i]);
    if (shared_.memory->Find(part.data(), part.size()) == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the system refuses to register ", part.size(),
                       " bytes to read into; is the locked-memory limit (ulimit -l) high enough?"));
    }
  }
  if (!any) return Violation("an offer of nothing");
  arrivals_.Push(std::move(arrival));
  TANDEM_RETURN_IF_ERROR(PumpReads());
  DeliverReady(out);
  return absl::OkStatus();
}

absl::Status RdmaConnection::PumpReads() {
  if (offers_here_ == 0) return absl::OkStatus();
  for (uint64_t n = arrivals_.front_number(); n < arrivals_.next_number(); ++n) {
    Arrival& arrival = arrivals_.At(n);
    while (arrival.offered && arrival.part < arrival.offer.parts) {
      if (arrival.offer.part_key[arrival.part] == 0 ||
          arrival.offset == arrival.offer.part_bytes[arrival.part]) {
        ++arrival.part;
        arrival.offset = 0;
        continue;
      }
      if (!HasRoom(1)) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(PostRead(n, &arrival));
    }
  }
  return absl::OkStatus();
}

absl::Status RdmaConnection::PostRead(uint64_t number, Arrival* arrival) {
  const int part = arrival->part;
  Buffer& to = arrival->delivery.frame.part[part];
  const size_t bytes = std::min(kReadBytes, to.size() - arrival->offset);
  ibv_sge piece = {reinterpret_cast<uintptr_t>(to.data()) + arrival->offset,
                   static_cast<uint32_t>(bytes), shared_.memory->Find(to.data(), to.size())->lkey};
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &piece;
  request.num_sge = 1;
  request.wr.rdma.remote_addr = arrival->offer.part_address[part] + arrival->offset;
  request.wr.rdma.rkey = arrival->offer.part_key[part];
  arrival->offset += bytes;
  ++arrival->reading;
  return Post(&request, {.kind = Work::Kind::kRead, .number = number});
}

void RdmaConnection::OnRead(uint64_t number, std::vector<RdmaDelivery>* out) {
  Arrival& arrival = arrivals_.At(number);
  --arrival.reading;
  if (!arrival.done()) return;
  control_.Push({Control::Kind::kDone, arrival.offer.token, 0, 0});
  DeliverReady(out);
}

// Where to put a frame that has arrived: straight into `out`, unless an earlier frame is still
// being read; then it queues behind that one, so that frames are delivered in the order sent.
RdmaDelivery* RdmaConnection::Arrive(std::vector<RdmaDelivery>* out) {
  if (!arrivals_.empty()) return &arrivals_.Push(Arrival()).delivery;
  ++owed_;
  return &out->emplace_back();
}

void RdmaConnection::DeliverReady(std::vector<RdmaDelivery>* out) {
  while (!arrivals_.empty() && arrivals_.front().done()) {
    Arrival arrival = arrivals_.Pop();
    ++owed_;
    offers_here_ -= arrival.offered ? 1 : 0;
    out->push_back(std::move(arrival.delivery));
  }
}

}  // namespace tandem
