// A one-way ring of bytes between two processes of one host: one producer, one consumer, one memfd.
//
// The bytes are mapped twice, back to back, so every span is contiguous and the wrap is invisible.
// Each side keeps its own cursor in private memory and only publishes it; what it reads of the
// other side's cursor must be possible (between what it was and what it can be), else the call
// returns DATA_LOSS and nothing outside the ring is ever touched. What a producer has not published
// when it dies was never there. Cursors count bytes since the beginning and never wrap in practice.
//
// Sleeping. The ring makes no system call after Map. A side that has nothing to do says that it
// goes to sleep, looks once more, and only then waits, on whatever both sides have agreed on (an
// eventfd, a socket). The other side is told by Publish or Consume to wake it, exactly once per
// sleep:
//
//   consumer                                producer
//   if (ring.ConsumerMaySleep())            if (ring.Publish(n)) wake the consumer;
//     wait;
//   ring.ConsumerAwake();
//
// Both orders are safe: "I sleep" and the last look, "published" and "does it sleep?" are
// sequentially consistent pairs, so at least one side sees the other's word.
//
// Thread safety: one thread at a time uses an object; the two sides are independent. Words of
// SharedWords() may be used by any thread.
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

  // A new, empty ring; `capacity` a power of two within the bounds above. The descriptor goes to
  // the other process (transport/unix_link.h); each side maps it and may then close it.
  static absl::StatusOr<OwnedFd> Create(size_t capacity = kDefaultCapacity);

  // INVALID_ARGUMENT: this is not a ring (not sealed, or of no possible size).
  static absl::StatusOr<ShmRing> Map(int fd, Role role);

  ShmRing() = default;
  ShmRing(ShmRing&&) = default;
  ShmRing& operator=(ShmRing&&) = default;

  size_t capacity() const { return capacity_; }

  // ---- producer ----

  // Free space to write into: at least `min_bytes`, at most `max_bytes`; an empty span if there is
  // less. Requires: 0 < min_bytes <= max_bytes and min_bytes <= capacity(). DATA_LOSS: the
  // consumer's cursor is impossible.
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t min_bytes, size_t max_bytes);
  // Makes the first `bytes` of the last Reserve visible. True: the consumer sleeps, wake it.
  [[nodiscard]] bool Publish(size_t bytes);
  // Free bytes, looked up again; never more than capacity().
  absl::StatusOr<size_t> bytes_free();
  // Where the consumer is, in bytes since the beginning; as of the last Reserve or bytes_free.
  uint64_t consumed() const { return other_; }
  uint64_t published() const { return mine_; }
  // Says that no more will come. The consumer sees it once it has read everything before.
  [[nodiscard]] bool Finish();
  // Says that the producer goes to sleep until `bytes` are free; false: they are, do not sleep.
  bool ProducerMaySleep(size_t bytes);
  void ProducerAwake();

  // ---- consumer ----

  // All that is published and not consumed, possibly nothing. DATA_LOSS: the producer's cursor is
  // impossible.
  absl::StatusOr<absl::Span<const uint8_t>> Peek();
  // Gives back the first `bytes` of the last Peek. True: the producer sleeps and has what it waits
  // for, wake it.
  [[nodiscard]] bool Consume(size_t bytes);
  // The producer has called Finish; what it published before may still be unread.
  bool finished() const;
  // Cheap: something to read, or the end.
  bool HasNews() const;
  // Says that the consumer goes to sleep; false: there is something to read or the end, do not
  // sleep.
  bool ConsumerMaySleep();
  void ConsumerAwake();

  // ---- both ----

  // Words at zero in the beginning, that either side may read and write at any time. Their meaning
  // is the user's, who must believe nothing that it reads there.
  absl::Span<std::atomic<uint64_t>> SharedWords();

 private:
  struct Header;
  explicit ShmRing(Mapping mapping, size_t capacity);
  Header* header() const;

  Mapping mapping_;  // header page, the bytes, the bytes again
  size_t capacity_ = 0;
  uint64_t mine_ = 0;   // own cursor: producer's tail or consumer's head
  uint64_t other_ = 0;  // last valid value of the other side's
  size_t granted_ = 0;  // by the last Reserve or Peek
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_RING_H_
