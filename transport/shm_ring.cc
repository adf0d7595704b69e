#include "transport/shm_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::transport {

// Each line has one writer, and lines are two apart, because processors fetch lines in pairs.
struct ShmRing::Header {
  alignas(128) std::atomic<uint64_t> tail;  // producer: bytes published
  std::atomic<uint64_t> finished;           // producer: 1 after Finish
  alignas(128) std::atomic<uint64_t> head;  // consumer: bytes consumed
  alignas(128) std::atomic<uint64_t> consumer_sleeps;
  // 0: awake. Otherwise one more than the head at which the producer has the room that it waits
  // for.
  alignas(128) std::atomic<uint64_t> producer_sleeps;
  alignas(128) std::atomic<uint64_t> words[kSharedWords];
};

namespace {
static_assert(std::atomic<uint64_t>::is_always_lock_free, "a lock would not be shared");
static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(std::atomic<uint64_t>) == 8);

// Maps the header, the bytes, and the bytes again as one range of address space.
absl::StatusOr<Mapping> MapTwice(int fd, size_t capacity, ShmRing::Role role) {
  const size_t total = kPageBytes + 2 * capacity;
  void* const at = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("ring: ", std::strerror(errno)));
  }
  Mapping mapping(static_cast<uint8_t*>(at), total);
  const auto place = [&](size_t where, size_t bytes, size_t from, int protection) {
    return mmap(mapping.data() + where, bytes, protection, MAP_SHARED | MAP_FIXED, fd,
                static_cast<off_t>(from)) != MAP_FAILED;
  };
  const int data = role == ShmRing::Role::kProducer ? PROT_READ | PROT_WRITE : PROT_READ;
  if (!place(0, kPageBytes, 0, PROT_READ | PROT_WRITE) ||
      !place(kPageBytes, capacity, kPageBytes, data) ||
      !place(kPageBytes + capacity, capacity, kPageBytes, data)) {
    return absl::ResourceExhaustedError(absl::StrCat("ring: ", std::strerror(errno)));
  }
  return mapping;
}

absl::Status ImpossibleCursor(uint64_t have, uint64_t low, uint64_t high) {
  return absl::DataLossError(
      absl::StrCat("ring: the peer's cursor is at ", have, ", possible is ", low, " to ", high));
}
}  // namespace

ShmRing::ShmRing(Mapping mapping, size_t capacity)
    : mapping_(std::move(mapping)), capacity_(capacity) {
  static_assert(sizeof(Header) <= kPageBytes);
}

ShmRing::Header* ShmRing::header() const { return reinterpret_cast<Header*>(mapping_.data()); }

absl::StatusOr<OwnedFd> ShmRing::Create(size_t capacity) {
  if (!std::has_single_bit(capacity) || capacity < kMinCapacity || capacity > kMaxCapacity) {
    return absl::InvalidArgumentError(absl::StrCat("ring of ", capacity,
                                                   " bytes, expected a power of two, ",
                                                   kMinCapacity, " to ", kMaxCapacity));
  }
  return CreateSharedMemory(kPageBytes + capacity);
}

absl::StatusOr<ShmRing> ShmRing::Map(int fd, Role role) {
  TANDEM_ASSIGN_OR_RETURN(const size_t bytes, CheckSharedMemory(fd, kPageBytes + kMaxCapacity));
  const size_t capacity = bytes - std::min(bytes, kPageBytes);
  if (!std::has_single_bit(capacity) || capacity < kMinCapacity) {
    return absl::InvalidArgumentError(absl::StrCat("ring in ", bytes, " bytes of shared memory"));
  }
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, MapTwice(fd, capacity, role));
  return ShmRing(std::move(mapping), capacity);
}

// ---- producer ----

absl::StatusOr<size_t> ShmRing::bytes_free() {
  const uint64_t head = header()->head.load(std::memory_order_acquire);
  if (head - other_ > mine_ - other_) return ImpossibleCursor(head, other_, mine_);
  other_ = head;
  return capacity_ - (mine_ - head);
}

absl::StatusOr<absl::Span<uint8_t>> ShmRing::Reserve(size_t min_bytes, size_t max_bytes) {
  TANDEM_CHECK(min_bytes > 0 && min_bytes <= max_bytes && min_bytes <= capacity_);
  size_t free = capacity_ - (mine_ - other_);
  if (free < min_bytes) {
    TANDEM_ASSIGN_OR_RETURN(free, bytes_free());
  }
  granted_ = free < min_bytes ? 0 : std::min(free, max_bytes);
  return absl::MakeSpan(mapping_.data() + kPageBytes + mine_ % capacity_, granted_);
}

bool ShmRing::Publish(size_t bytes) {
  TANDEM_CHECK(bytes <= granted_);
  granted_ -= bytes;
  mine_ += bytes;
  Header* const h = header();
  h->tail.store(mine_);
  return h->consumer_sleeps.load() != 0 && h->consumer_sleeps.exchange(0) != 0;
}

bool ShmRing::Finish() {
  Header* const h = header();
  h->finished.store(1);
  return h->consumer_sleeps.load() != 0 && h->consumer_sleeps.exchange(0) != 0;
}

bool ShmRing::ProducerMaySleep(size_t bytes) {
  TANDEM_CHECK(bytes <= capacity_);
  Header* const h = header();
  const uint64_t wanted = mine_ + bytes;  // the head must reach `wanted` minus the capacity
  if (wanted <= capacity_ + other_) return false;
  h->producer_sleeps.store(wanted - capacity_ + 1);
  if (h->head.load() < wanted - capacity_) return true;
  ProducerAwake();
  return false;
}

void ShmRing::ProducerAwake() { header()->producer_sleeps.store(0, std::memory_order_relaxed); }

// ---- consumer ----

absl::StatusOr<absl::Span<const uint8_t>> ShmRing::Peek() {
  const uint64_t tail = header()->tail.load(std::memory_order_acquire);
  if (tail - mine_ > capacity_ || tail - other_ > capacity_) {
    return ImpossibleCursor(tail, other_, mine_ + capacity_);
  }
  other_ = tail;
  granted_ = tail - mine_;
  return absl::MakeConstSpan(mapping_.data() + kPageBytes + mine_ % capacity_, granted_);
}

bool ShmRing::Consume(size_t bytes) {
  TANDEM_CHECK(bytes <= granted_);
  granted_ -= bytes;
  mine_ += bytes;
  Header* const h = header();
  h->head.store(mine_);
  const uint64_t wanted = h->producer_sleeps.load();
  return wanted != 0 && mine_ >= wanted - 1 && h->producer_sleeps.exchange(0) != 0;
}

bool ShmRing::finished() const { return header()->finished.load(std::memory_order_acquire) != 0; }

bool ShmRing::HasNews() const {
  return header()->tail.load() != mine_ || header()->finished.load() != 0;
}

bool ShmRing::ConsumerMaySleep() {
  header()->consumer_sleeps.store(1);
  if (!HasNews()) return true;
  ConsumerAwake();
  return false;
}

void ShmRing::ConsumerAwake() { header()->consumer_sleeps.store(0, std::memory_order_relaxed); }

// ---- both ----

absl::Span<std::atomic<uint64_t>> ShmRing::SharedWords() {
  return absl::MakeSpan(header()->words, kSharedWords);
}

}  // namespace tandem::transport
