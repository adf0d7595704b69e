// ShmRing is a one-way ring of bytes between two processes on one host: one producer, one consumer,
// one memfd.
//
// The bytes are mapped twice, back to back, so every span is contiguous and users do not see the
// wrap. Each side keeps its own cursor in private memory and only publishes it. A side checks the
// other side's cursor before it uses it: the value must lie between the previous value and the
// largest possible one. Otherwise the call returns DATA_LOSS, and memory outside the ring is never
// touched. Bytes that a producer has not published when it dies do not exist for the consumer.
// Cursors count bytes since the beginning and never wrap in practice.
//
// Sleeping: the ring makes no system call after Map. A side with nothing to do says that it sleeps,
// looks once more, and only then waits, on whatever both sides have agreed on (an eventfd, a
// socket). Publish or Consume tells the other side to wake it, exactly once per sleep:
//
//   consumer                                producer
//   if (ring.ConsumerMaySleep())            if (ring.Publish(n)) wake the consumer;
//     wait;
//   ring.ConsumerAwake();
//
// No wake-up is lost, in whatever order the two sides act. The consumer stores "I sleep" and then
// looks for data; the producer stores the data and then looks for "I sleep". All four accesses are
// sequentially consistent, so at least one side sees the other's store.
//
// Thread safety: one thread at a time uses an object; the two sides are independent. Any thread may
// use the words of SharedWords().
#ifndef TANDEM_TRANSPORT_SHM_RING_H_
#define TANDEM_TRANSPORT_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/owned_fd.h"
#include "transport/shm_memory.h"

namespace tandem::transport {

class ShmRing {
 public:
  enum class Role { kProducer, kConsumer };
  static constexpr size_t kDefaultCapacity = size_t{1} << 20;
  static constexpr size_t kMinCapacity = kPageBytes;
  static constexpr size_t kMaxCapacity = size_t{1} << 30;
  static constexpr size_t kSharedWords = 128;

  // Creates an empty ring; `capacity` is a power of two within the bounds above. The descriptor
  // goes to the other process (transport/unix_link.h). Each side maps it and may then close it.
  static absl::StatusOr<OwnedFd> Create(size_t capacity = kDefaultCapacity);

  // INVALID_ARGUMENT: the memory is not a ring (not sealed, or of an impossible size).
  static absl::StatusOr<ShmRing> Map(int fd, Role role);

  ShmRing() = default;
  ShmRing(ShmRing&&) = default;
  ShmRing& operator=(ShmRing&&) = default;

  size_t capacity() const { return capacity_; }

  // ---- producer ----

  // Returns free space to write into: at least `min_bytes` and at most `max_bytes`, or an empty
  // span if there is less. Requires: 0 < min_bytes <= max_bytes and min_bytes <= capacity().
  // DATA_LOSS: the consumer's cursor is impossible.
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t min_bytes, size_t max_bytes);
  // Makes the first `bytes` of the last Reserve visible. True: the consumer sleeps, so wake it.
  [[nodiscard]] bool Publish(size_t bytes);
  // Reads the consumer's cursor and returns the free bytes; never more than capacity().
  absl::StatusOr<size_t> bytes_free();
  // The consumer's position in bytes since the beginning, as of the last Reserve or bytes_free.
  uint64_t consumed() const { return other_; }
  uint64_t published() const { return mine_; }
  // Says that no more bytes will come. The consumer sees it after it has read everything before.
  [[nodiscard]] bool Finish();
  // Says that the producer sleeps until `bytes` are free. False: they are free, so do not sleep.
  bool ProducerMaySleep(size_t bytes);
  void ProducerAwake();

  // ---- consumer ----

  // Returns all bytes that are published and not consumed, possibly none. DATA_LOSS: the producer's
  // cursor is impossible.
  absl::StatusOr<absl::Span<const uint8_t>> Peek();
  // Gives back the first `bytes` of the last Peek. True: the producer sleeps and now has the room
  // that it waits for, so wake it.
  [[nodiscard]] bool Consume(size_t bytes);
  // The producer has called Finish. Bytes that it published before may still be unread.
  bool finished() const;
  // True if there is something to read, or the end. Cheap.
  bool HasNews() const;
  // Says that the consumer sleeps. False: there is something to read, or the end, so do not sleep.
  bool ConsumerMaySleep();
  void ConsumerAwake();

  // ---- both ----

  // Words that are zero at first and that either side may read and write at any time. The user
  // gives them a meaning, and must trust nothing that it reads there.
  absl::Span<std::atomic<uint64_t>> SharedWords();

 private:
  struct Header;
  explicit ShmRing(Mapping mapping, size_t capacity);
  Header* header() const;

  Mapping mapping_;  // header page, the bytes, the bytes again
  size_t capacity_ = 0;
  uint64_t mine_ = 0;   // own cursor: the producer's tail or the consumer's head
  uint64_t other_ = 0;  // last valid value of the other side's cursor
  size_t granted_ = 0;  // by the last Reserve or Peek
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_RING_H_
