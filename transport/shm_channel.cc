#include "transport/shm_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::transport {
namespace {

// The first byte of a socket message.
constexpr char kBell = 'b', kHello = 'h', kSegment = 's';
constexpr char kHelloText[] = "hTNDMSHM1";  // kind of message, protocol name, version

constexpr size_t kRecordHead = 8;
constexpr uint64_t kPlacedBit = uint64_t{1} << 63;
constexpr size_t kPlacedBytes = 24;
constexpr size_t kPlacedRecord = kRecordHead + kMaxFrameParts * kPlacedBytes;
constexpr size_t kInlineRoom = size_t{512} << 10;  // room in a ring beyond what must always fit
constexpr size_t kMaxSegments = 4096;
constexpr size_t kMaxSegmentBytes = size_t{1} << 32;
// Part 0 is copied, so its size is bounded first. A larger part 0 cannot be a frame
// (proto/frame.h).
constexpr size_t kMaxPart0Bytes = kMaxControlBytes + size_t{64} * 1024;
constexpr int kMessagesPerTurn = 64;
constexpr int kMaxReads = 100'000;  // more messages than a socket stores

// Shared words of the ring: which slots are given back, and whether their owner waits for one. The
// summary word has one bit for each of the 64 slot words.
constexpr size_t kSummaryWord = 0, kFirstSlotWord = 1, kWantsSlotsWord = 65;

size_t Padded(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
uint8_t* Store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
  return at + sizeof value;
}

absl::Status BadRecord(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("shared memory: ", what));
}

}  // namespace

// The receiving half of a channel. Received buffers keep it alive.
class ShmInbox {
 public:
  explicit ShmInbox(UnixLink socket) : socket_(std::move(socket)) {}
  UnixLink& socket() { return socket_; }
  ShmRing& ring() { return ring_; }
  // Counts another buffer of the peer that is held here. Returns the number of held buffers.
  size_t Hold() { return held_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Gives a slot back to the peer, from any thread. The slot's bit must be set before the summary's
  // bit: the peer clears the summary first and then reads the slot words that it names.
  void Release(uint32_t slot) {
    held_.fetch_sub(1, std::memory_order_relaxed);
    const absl::Span<std::atomic<uint64_t>> words = ring_.SharedWords();
    words[kFirstSlotWord + slot / 64].fetch_or(uint64_t{1} << (slot % 64));
    words[kSummaryWord].fetch_or(uint64_t{1} << (slot / 64));
    if (words[kWantsSlotsWord].load() != 0 && words[kWantsSlotsWord].exchange(0) != 0) Bell();
  }
  // A send fails if the peer is gone, or if its socket is full of bells that it has not read yet.
  // In both cases one more bell is useless, so the error is ignored.
  void Bell() { (void)socket_.Send(absl::string_view(&kBell, 1)); }

 private:
  UnixLink socket_;
  ShmRing ring_;
  std::atomic<size_t> held_{0};
};

// A part that stays where its sender wrote it.
class ReceivedSpan final : public BufferBlock {
 public:
  ReceivedSpans* pool = nullptr;
  ReceivedSpan* next = nullptr;
  std::shared_ptr<ShmInbox> inbox;
  std::shared_ptr<const Mapping> memory;
  uint32_t slot = 0;

 private:
  void Recycle() override {
    inbox->Release(slot);
    inbox.reset();
    memory.reset();
    pool->Give(this);
  }
};

void ReceivedSpansDropper::operator()(ReceivedSpans* pool) const { ReceivedSpans::Dropper()(pool); }
ReceivedSpansOwner NewReceivedSpans() { return ReceivedSpansOwner(ReceivedSpans::New().release()); }

ShmChannel::ShmChannel(const ShmShared& shared, int queue_frames)
    : shared_(shared), bound_(static_cast<size_t>(queue_frames)), ends_(bound_) {}
ShmChannel::~ShmChannel() = default;

absl::StatusOr<std::unique_ptr<ShmChannel>> ShmChannel::New(UnixLink socket,
                                                            const ShmShared& shared,
                                                            int queue_frames) {
  std::unique_ptr<ShmChannel> link(new ShmChannel(shared, queue_frames));
  TANDEM_RETURN_IF_ERROR(link->Start(std::move(socket)));
  return link;
}

absl::Status ShmChannel::Start(UnixLink socket) {
  const size_t capacity = std::bit_ceil(bound_ * kPlacedRecord + kInlineRoom);
  TANDEM_ASSIGN_OR_RETURN(const OwnedFd ring, ShmRing::Create(capacity));
  TANDEM_ASSIGN_OR_RETURN(out_, ShmRing::Map(ring.get(), ShmRing::Role::kProducer));
  inbox_ = std::make_shared<ShmInbox>(std::move(socket));
  const int fds[] = {ring.get()};
  const absl::Status sent = inbox_->socket().Send(kHelloText, fds);
  // A peer that has finished and left may have frames in its ring that are still to be read.
  return absl::IsUnavailable(sent) ? absl::OkStatus() : sent;
}

int ShmChannel::fd() const { return inbox_->socket().fd(); }

void ShmChannel::Bell() {
  ++shared_.stats->bells;
  inbox_->Bell();
}

// ---- the socket ----

absl::Status ShmChannel::ReadSocket() {
  for (int i = 0; i < kMessagesPerTurn && !gone_; ++i) {
    ++shared_.stats->socket_reads;
    absl::StatusOr<UnixMessage> message = inbox_->socket().Receive();
    if (absl::IsNotFound(message.status())) return absl::OkStatus();
    if (absl::IsUnavailable(message.status())) {
      gone_ = true;
      return absl::OkStatus();
    }
    TANDEM_RETURN_IF_ERROR(message.status());
    if (message->bytes[0] == kBell) return absl::OkStatus();  // the rest can wait
    TANDEM_RETURN_IF_ERROR(OnMessage(*std::move(message)));
  }
  return absl::OkStatus();
}

absl::Status ShmChannel::OnMessage(UnixMessage message) {
  if (message.bytes[0] == kHello && !open_) return OnHello(message);
  if (message.bytes[0] == kSegment && open_) return OnSegment(message);
  return absl::InvalidArgumentError("shared memory: a message of an unknown kind");
}

absl::Status ShmChannel::OnHello(const UnixMessage& message) {
  if (message.bytes != kHelloText || message.fds.size() != 1) {
    return absl::InvalidArgumentError(
        "shared memory: the first message of the peer is unknown: another program or version?");
  }
  TANDEM_ASSIGN_OR_RETURN(inbox_->ring(),
                          ShmRing::Map(message.fds[0].get(), ShmRing::Role::kConsumer));
  open_ = true;
  return absl::OkStatus();
}

absl::Status ShmChannel::OnSegment(const UnixMessage& message) {
  if (message.bytes.size() != 1 + sizeof(uint32_t) || message.fds.size() != 1 ||
      segments_.size() >= kMaxSegments) {
    return absl::InvalidArgumentError(
        "shared memory: a malformed segment message, or too many segments");
  }
  const auto id = Load<uint32_t>(reinterpret_cast<const uint8_t*>(message.bytes.data()) + 1);
  const int fd = message.fds[0].get();
  TANDEM_ASSIGN_OR_RETURN(const size_t bytes, CheckSharedMemory(fd, kMaxSegmentBytes));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, MapSharedMemory(fd, bytes, /*writable=*/false));
  segments_.push_back({id, std::make_shared<const Mapping>(std::move(mapping))});
  return absl::OkStatus();
}

// ---- sending ----

// Returns the free bytes of the ring, and forgets the ends of frames that were read.
absl::StatusOr<size_t> ShmChannel::UpdateFree() {
  TANDEM_ASSIGN_OR_RETURN(const size_t free, out_.bytes_free());
  while (unread_ > 0 && ends_[first_end_] <= out_.consumed()) {
    first_end_ = (first_end_ + 1) % bound_;
    --unread_;
  }
  return free;
}

absl::Status ShmChannel::Send(absl::Span<const Buffer> parts) {
  if (unread_ >= bound_) TANDEM_RETURN_IF_ERROR(UpdateFree().status());
  if (unread_ >= bound_) {
    return absl::ResourceExhaustedError(absl::StrCat(bound_, " frames are queued"));
  }
  TANDEM_ASSIGN_OR_RETURN(const size_t largest_inline, LargestInline(parts));
  size_t bytes = kRecordHead, placed = 0;
  for (const Buffer& part : parts) {
    const bool is_inline = part.size() <= largest_inline;
    placed += !is_inline;
    bytes += is_inline ? 8 + Padded(part.size()) : kPlacedBytes;
  }
  if (slots_in_use_ + placed > kSlots) CollectReleased();
  wants_slots_ = slots_in_use_ + placed > kSlots;
  if (wants_slots_) {
    return absl::ResourceExhaustedError(absl::StrCat("the peer holds ", slots_in_use_, " buffers"));
  }
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<uint8_t> space, out_.Reserve(bytes, bytes));
  if (space.empty()) return absl::ResourceExhaustedError("the ring is full");
  // From here on nothing refuses the frame. The order matters: a peer keeps a segment that is
  // announced to it until the frame comes, and a part is copied to shared memory only once. So all
  // bounds are checked before. Each segment is announced before the record that names it is
  // published; a receiver that does not know a segment finds the announcement waiting on the
  // socket.
  Plans plans(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].size() > largest_inline) TANDEM_RETURN_IF_ERROR(Place(parts[i], &plans[i]));
  }
  for (const PartPlan& plan : plans) {
    if (!plan.held.empty()) TANDEM_RETURN_IF_ERROR(Announce(plan.place));
  }
  Write(parts, &plans, space);
  return absl::OkStatus();
}

// The size of the largest part that travels in the ring; larger parts need a place in shared
// memory. Parts travel in the ring only while enough of it stays free for the rest of the queue.
// The bound of the queue is a number of frames, and a few frames with large inline parts must not
// reduce it.
absl::StatusOr<size_t> ShmChannel::LargestInline(absl::Span<const Buffer> parts) {
  size_t bytes = kRecordHead;
  for (const Buffer& part : parts) {
    bytes += 8 + (part.size() <= ShmArena::kInlineBytes ? Padded(part.size()) : kPlacedBytes - 8);
  }
  const size_t needed = bytes + (bound_ - unread_) * kPlacedRecord;
  size_t free = out_.capacity() - (out_.published() - out_.consumed());
  if (free < needed) {
    TANDEM_ASSIGN_OR_RETURN(free, UpdateFree());
  }
  return free < needed ? 0 : ShmArena::kInlineBytes;
}

// Finds the position of a part in shared memory, and copies the part there first if necessary.
absl::Status ShmChannel::Place(const Buffer& part, PartPlan* plan) {
  plan->held = part;
  const bool aligned = reinterpret_cast<uintptr_t>(part.data()) % 8 == 0;
  if (aligned && shared_.arena->Find({part.data(), part.size()}, &plan->place)) {
    return absl::OkStatus();
  }
  absl::StatusOr<Buffer> memory = shared_.arena->AllocShared(part.size());
  if (!memory.ok()) {
    return absl::AbortedError(absl::StrCat("no shared memory for a part of ", part.size(),
                                           " bytes: ", memory.status().message()));
  }
  plan->held = *std::move(memory);
  std::memcpy(plan->held.mutable_data(), part.data(), part.size());
  shared_.stats->bytes_copied += part.size();
  TANDEM_CHECK(shared_.arena->Find({plan->held.data(), part.size()}, &plan->place));
  return absl::OkStatus();
}

// Gives the peer the segment, unless the peer has it.
absl::Status ShmChannel::Announce(const ShmArena::Place& place) {
  const bool known =
      std::find(announced_.begin(), announced_.end(), place.segment) != announced_.end();
  if (known && !place.passing) return absl::OkStatus();
  char message[1 + sizeof place.segment] = {kSegment};
  std::memcpy(message + 1, &place.segment, sizeof place.segment);
  const int fds[] = {shared_.arena->Segment(place.segment).fd};
  ++shared_.stats->announcements;
  TANDEM_RETURN_IF_ERROR(inbox_->socket().Send({message, sizeof message}, fds));
  if (!place.passing) announced_.push_back(place.segment);
  return absl::OkStatus();
}

uint32_t ShmChannel::TakeSlot(Buffer held) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<uint32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = std::move(held);
  ++slots_in_use_;
  return slot;
}

void ShmChannel::Write(absl::Span<const Buffer> parts, Plans* plans, absl::Span<uint8_t> space) {
  const size_t bytes = space.size();
  uint8_t* at = Store(space.data(), static_cast<uint32_t>(bytes));
  at = Store(at, static_cast<uint32_t>(parts.size()));
  for (size_t i = 0; i < parts.size(); ++i) {
    PartPlan& plan = (*plans)[i];
    if (plan.held.empty()) {
      at = Store(at, uint64_t{parts[i].size()});
      if (!parts[i].empty()) std::memcpy(at, parts[i].data(), parts[i].size());
      at += Padded(parts[i].size());
    } else {
      at = Store(at, uint64_t{parts[i].size()} | kPlacedBit);
      at = Store(at, plan.place.segment);
      at = Store(at, TakeSlot(std::move(plan.held)));
      ++shared_.stats->parts_placed;
      at = Store(at, plan.place.offset);
    }
  }
  ends_[(first_end_ + unread_++) % bound_] = out_.published() + bytes;
  if (out_.Publish(bytes)) Bell();
}

absl::StatusOr<bool> ShmChannel::RoomAgain() {
  TANDEM_RETURN_IF_ERROR(UpdateFree().status());
  if (wants_slots_) {
    CollectReleased();
    wants_slots_ = slots_in_use_ > kSlots / 2;
  }
  return unread_ <= bound_ / 2 && !wants_slots_;
}

void ShmChannel::Finish() {
  if (out_.Finish()) Bell();
}

void ShmChannel::HangUp() { shutdown(fd(), SHUT_WR); }

bool ShmChannel::PeerMayRead() const {
  if (slots_in_use_ == 0) return false;
  if (!gone_) return true;
  return !peer_finished() && !inbox_->socket().PeerProcessIsDead();
}

// Clears the summary before the slot words that it names. A slot that the peer gives back meanwhile
// sets its summary bit again, so the next call finds it.
void ShmChannel::CollectReleased() {
  if (slots_in_use_ == 0) return;
  const absl::Span<std::atomic<uint64_t>> words = out_.SharedWords();
  if (words[kSummaryWord].load(std::memory_order_relaxed) == 0) return;
  for (uint64_t groups = words[kSummaryWord].exchange(0); groups != 0; groups &= groups - 1) {
    const auto group = static_cast<uint32_t>(std::countr_zero(groups));
    for (uint64_t bits = words[kFirstSlotWord + group].exchange(0); bits != 0; bits &= bits - 1) {
      const uint32_t slot = group * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      if (slot >= slots_.size() || slots_[slot].empty()) continue;  // the peer may write anything
      slots_[slot] = Buffer();
      free_slots_.push_back(slot);
      --slots_in_use_;
    }
  }
}

// ---- receiving ----

bool ShmChannel::HasNews() const { return open_ && inbox_->ring().HasNews(); }
bool ShmChannel::peer_finished() const { return open_ && inbox_->ring().finished(); }

absl::StatusOr<bool> ShmChannel::Receive(Frame* frame, size_t* parts) {
  if (!open_) return false;
  ShmRing& ring = inbox_->ring();
  TANDEM_ASSIGN_OR_RETURN(const absl::Span<const uint8_t> bytes, ring.Peek());
  if (bytes.empty()) return false;
  if (bytes.size() < kRecordHead) return BadRecord("half a record");
  const size_t size = Load<uint32_t>(bytes.data());
  if (size < kRecordHead || size % 8 != 0 || size > bytes.size()) {
    return BadRecord(absl::StrCat("record of ", size, " bytes, there are ", bytes.size()));
  }
  const Buffer record = CopyToBuffer(*shared_.heap, bytes.first(size));
  if (ring.Consume(size)) Bell();
  *parts = Load<uint32_t>(record.data() + 4);
  *frame = Frame();
  frame->parts = static_cast<int>(std::min<size_t>(*parts, kMaxFrameParts));
  size_t at = kRecordHead;
  for (size_t i = 0; i < *parts; ++i) TANDEM_RETURN_IF_ERROR(TakePart(record, &at, i, frame));
  return true;
}

absl::Status ShmChannel::TakePart(const Buffer& record, size_t* at, size_t index, Frame* frame) {
  if (record.size() - *at < 8) return BadRecord("a part beyond its record");
  const auto word = Load<uint64_t>(record.data() + *at);
  const uint64_t size = word & ~kPlacedBit;
  const bool placed = (word & kPlacedBit) != 0;
  *at += 8;
  const size_t here = placed ? kPlacedBytes - 8 : size > record.size() ? size : Padded(size);
  if (here > record.size() - *at) return BadRecord("a part beyond its record");
  const size_t start = std::exchange(*at, *at + here);
  if (placed) return TakePlaced({record.data() + start, here}, size, index, frame);
  if (index < size_t{kMaxFrameParts} && size > 0) frame->part[index] = record.Slice(start, size);
  return absl::OkStatus();
}

absl::Status ShmChannel::TakePlaced(absl::Span<const uint8_t> words, uint64_t size, size_t index,
                                    Frame* frame) {
  const auto slot = Load<uint32_t>(&words[4]);
  const auto offset = Load<uint64_t>(&words[8]);
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> memory,
                          FindSegment(Load<uint32_t>(&words[0])));
  if (slot >= kSlots || offset % 8 != 0 || size == 0 || size > memory->size() ||
      offset > memory->size() - size || (index == 0 && size > kMaxPart0Bytes)) {
    return BadRecord(
        absl::StrCat("slot ", slot, ", ", size, " bytes at ", offset, " of ", memory->size()));
  }
  ReceivedSpan* const span = shared_.spans->Take();
  span->inbox = inbox_;
  span->slot = slot;
  const bool many = inbox_->Hold() > kSlots / 2;
  const Buffer part(span, memory->data() + offset, size);
  span->memory = std::move(memory);
  if (index >= size_t{kMaxFrameParts}) return absl::OkStatus();
  // Part 0 says how to read the other parts, so it must not change after it was checked. The copy
  // for `many` has another reason: a receiver may keep what it receives, as a shard does with
  // updates of later steps. Such a receiver must not occupy every slot, because the frame that lets
  // it continue needs one.
  const bool copy = index == 0 || many;
  frame->part[index] = copy ? CopyToBuffer(*shared_.heap, {part.data(), part.size()}) : part;
  if (copy) shared_.stats->bytes_copied += part.size();
  return absl::OkStatus();
}

// Finds a mapped segment. The sender announces a segment on the socket before a record refers to
// it, so the announcement of an unknown segment waits there. A segment larger than kLargestKept
// belongs to a single block; only received buffers keep it mapped.
absl::StatusOr<std::shared_ptr<const Mapping>> ShmChannel::FindSegment(uint32_t id) {
  for (int reads = 0; reads < kMaxReads; ++reads) {
    for (size_t i = segments_.size(); i-- > 0;) {
      if (segments_[i].id != id) continue;
      std::shared_ptr<const Mapping> memory = segments_[i].memory;
      if (memory->size() > ShmArena::kLargestKept) segments_.erase(segments_.begin() + i);
      return memory;
    }
    ++shared_.stats->socket_reads;
    absl::StatusOr<UnixMessage> message = inbox_->socket().Receive();
    if (absl::IsResourceExhausted(message.status())) return message.status();
    if (!message.ok()) break;
    if (message->bytes[0] != kBell) TANDEM_RETURN_IF_ERROR(OnMessage(*std::move(message)));
  }
  return BadRecord(absl::StrCat("segment ", id, " is not known"));
}

// ---- sleeping ----

bool ShmChannel::MaySleep(bool blocked) {
  if (open_ && !inbox_->ring().ConsumerMaySleep()) return false;
  if (!blocked) return true;
  if (wants_slots_) {
    std::atomic<uint64_t>& wanted = out_.SharedWords()[kWantsSlotsWord];
    wanted.store(1);
    return out_.SharedWords()[kSummaryWord].load() == 0;
  }
  // Sleep until half of the queue is read.
  if (unread_ <= bound_ / 2) return false;
  const uint64_t read = ends_[(first_end_ + unread_ - bound_ / 2 - 1) % bound_];
  return out_.ProducerMaySleep(out_.capacity() - (out_.published() - read));
}

void ShmChannel::Awake() {
  if (open_) inbox_->ring().ConsumerAwake();
  out_.ProducerAwake();
}

}  // namespace tandem::transport
