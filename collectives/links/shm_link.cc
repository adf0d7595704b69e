#include "collectives/links/shm_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

// A large Write publishes its bytes in parts of this size.
constexpr size_t kPublishBytes = size_t{32} << 10;
constexpr size_t kMaxReleaseBytes = size_t{64} << 10;
constexpr size_t kCut = 64;
// The number of calls in a row that move nothing before the link looks at the socket.
constexpr uint32_t kIdleCalls = 4096;

// Copies bytes [offset, offset + to.size()) of head and body, taken as one.
void CopyPart(absl::Span<const uint8_t> head, absl::Span<const uint8_t> body, size_t offset,
              absl::Span<uint8_t> to) {
  const size_t in_head = std::min(offset, head.size());
  const size_t of_head = std::min(head.size() - in_head, to.size());
  std::copy_n(head.begin() + in_head, of_head, to.begin());
  std::copy_n(body.begin() + (offset - in_head), to.size() - of_head, to.begin() + of_head);
}

}  // namespace

absl::StatusOr<ShmLink::Rings> ShmLink::NewRings(size_t capacity) {
  Rings rings;
  for (OwnedFd& ring : rings) {
    TANDEM_ASSIGN_OR_RETURN(ring, transport::ShmRing::Create(capacity));
  }
  return rings;
}

absl::StatusOr<ShmLink::Mapped> ShmLink::Map(const Rings& rings, bool maker) {
  Mapped mapped;
  TANDEM_ASSIGN_OR_RETURN(mapped.out, transport::ShmRing::Map(rings[maker ? 0 : 1].get(),
                                                              transport::ShmRing::Role::kProducer));
  TANDEM_ASSIGN_OR_RETURN(mapped.in, transport::ShmRing::Map(rings[maker ? 1 : 0].get(),
                                                             transport::ShmRing::Role::kConsumer));
  if (mapped.in.capacity() < kMaxPeek)
    return absl::InvalidArgumentError("a ring too small to peek");
  return mapped;
}

absl::StatusOr<std::array<std::unique_ptr<ShmLink>, 2>> ShmLink::NewPair(size_t capacity) {
  TANDEM_ASSIGN_OR_RETURN(auto sockets, transport::UnixLink::Pair());
  TANDEM_ASSIGN_OR_RETURN(const Rings rings, NewRings(capacity));
  TANDEM_ASSIGN_OR_RETURN(Mapped first, Map(rings, true));
  TANDEM_ASSIGN_OR_RETURN(Mapped second, Map(rings, false));
  std::array<std::unique_ptr<ShmLink>, 2> ends;
  ends[0] = std::make_unique<ShmLink>(std::move(sockets.first), std::move(first));
  ends[1] = std::make_unique<ShmLink>(std::move(sockets.second), std::move(second));
  return ends;
}

ShmLink::ShmLink(transport::UnixLink socket, Mapped rings)
    : socket_(std::move(socket)),
      in_(std::move(rings.in)),
      out_(std::move(rings.out)),
      release_at_(std::min(kMaxReleaseBytes, in_.capacity() / 8)) {}

ShmLink::~ShmLink() {
  if (out_.Finish()) Ring();
}

// ---- writing ----

absl::StatusOr<size_t> ShmLink::Write(absl::Span<const uint8_t> head,
                                      absl::Span<const uint8_t> body) {
  if (!status_.ok()) return status_;
  const size_t total = head.size() + body.size();
  if (total == 0) return size_t{0};
  blocked_ = 0;
  if (total <= kPublishBytes && total <= out_.capacity()) {
    absl::StatusOr<absl::Span<uint8_t>> room = out_.Reserve(total, total);
    if (!room.ok()) return status_ = std::move(room).status();
    if (!room->empty()) {
      CopyPart(head, body, 0, *room);
      Publish(total);
      return total;
    }
  }
  return WriteInParts(head, body);
}

absl::StatusOr<size_t> ShmLink::WriteInParts(absl::Span<const uint8_t> head,
                                             absl::Span<const uint8_t> body) {
  const size_t total = head.size() + body.size();
  size_t taken = 0;
  while (taken < total) {
    // Do not publish the head alone: its reader would wake for nothing.
    const size_t head_left = head.size() - std::min(taken, head.size());
    const size_t least = std::min({total - taken, head_left + kCut, out_.capacity()});
    const size_t most = std::max(least, std::min(total - taken, kPublishBytes));
    absl::StatusOr<absl::Span<uint8_t>> room = out_.Reserve(least, most);
    if (!room.ok()) return status_ = std::move(room).status();
    if (room->empty()) break;
    size_t n = room->size();
    if (taken + n < total) n -= (n - head_left) % kCut;
    CopyPart(head, body, taken, room->first(n));
    Publish(n);
    taken += n;
  }
  blocked_ = total - taken;
  if (taken == 0) {
    Idle();
    if (gone_) return status_ = Ended();
  }
  return taken;
}

void ShmLink::Publish(size_t n) {
  if (out_.Publish(n)) Ring();
}

// ---- reading ----

bool ShmLink::Look() {
  absl::StatusOr<absl::Span<const uint8_t>> all = in_.Peek();
  if (!all.ok()) {
    status_ = std::move(all).status();
    return false;
  }
  const size_t before = seen_.size();
  seen_ = all->subspan(unreleased_);
  return seen_.size() > before;
}

absl::StatusOr<absl::Span<const uint8_t>> ShmLink::Peek(size_t least) {
  TANDEM_CHECK(least >= 1 && least <= kMaxPeek);
  if (!status_.ok()) return status_;
  wants_more_ = false;
  if (seen_.size() >= least) return seen_;
  if (Look() && seen_.size() >= least) return seen_;
  if (seen_.empty()) Release();
  wants_more_ = true;
  Idle();
  if (gone_ && !Look() && status_.ok()) status_ = Ended();
  if (!status_.ok()) return status_;
  return absl::Span<const uint8_t>();
}

void ShmLink::Consume(size_t n) {
  TANDEM_CHECK(n <= seen_.size());
  seen_.remove_prefix(n);
  unreleased_ += n;
  if (unreleased_ >= release_at_) Release();
}

void ShmLink::Release() {
  if (unreleased_ > 0 && in_.Consume(std::exchange(unreleased_, 0))) Ring();
}

absl::StatusOr<size_t> ShmLink::Read(absl::Span<uint8_t> to) {
  size_t n = 0;
  while (n < to.size()) {
    if (seen_.empty()) {
      absl::StatusOr<absl::Span<const uint8_t>> seen = Peek(1);
      if (!seen.ok() && n == 0) return std::move(seen).status();
      if (!seen.ok() || seen->empty()) break;
    }
    const size_t part = std::min({to.size() - n, seen_.size(), kPublishBytes});
    std::memcpy(to.data() + n, seen_.data(), part);
    Consume(part);
    n += part;
  }
  return n;
}

// ---- sleeping and ending ----

bool ShmLink::PrepareToSleep() {
  if (!status_.ok() || gone_) return false;
  Release();
  if (blocked_ > 0 && !out_.ProducerMaySleep(std::min(blocked_, out_.capacity() / 2))) return false;
  // Bytes that were seen but not consumed do not prevent sleep: the caller waits for something
  // else.
  if (!seen_.empty() && !wants_more_) return true;
  if (in_.ConsumerMaySleep()) return true;
  out_.ProducerAwake();
  Look();
  return false;
}

void ShmLink::WakeUp() {
  in_.ConsumerAwake();
  out_.ProducerAwake();
  ListenToSocket();
}

// Errors do not matter. If the socket is full, the peer has a wake-up already. If it is closed,
// ListenToSocket notices it.
void ShmLink::Ring() { (void)socket_.Send("!"); }

void ShmLink::ListenToSocket() {
  char bytes[64];
  ssize_t n;
  do {
    n = recv(socket_.fd(), bytes, sizeof bytes, MSG_DONTWAIT);
  } while (n > 0 || (n < 0 && errno == EINTR));
  if (n == 0 || errno != EAGAIN) gone_ = true;
}

void ShmLink::Idle() {
  if (++idle_calls_ % kIdleCalls == 0 && !gone_) ListenToSocket();
}

absl::Status ShmLink::Ended() {
  return absl::UnavailableError(in_.finished() ? "connection closed by the peer"
                                               : "the peer's process is gone");
}

}  // namespace tandem::collectives
