// A two-way stream of bytes to one other rank: in order, nothing lost or doubled, until it fails.
// The engine is the only user of a link, from one thread. No call blocks or, once warm, allocates.
//
// Implementations: in_memory_link.h (one process, tests), shm_link.h, tcp_link.h, transport_link.h
// (over a Transport: RDMA, ZeroMQ), frame_link.h (what that is made of; the simulated network).
//
// An error from any call is final for the link and says what happened ("connection reset"); it does
// not name the rank, the engine does.
#ifndef TANDEM_COLLECTIVES_LINKS_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_LINK_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::collectives {

class Link {
 public:
  virtual ~Link() = default;

  // Takes as many bytes of `head` followed by `body` as fit now and returns how many. They may be
  // overwritten at once. Large takes are in multiples of 64 bytes of body where that is possible.
  virtual absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                                       absl::Span<const uint8_t> body) = 0;

  // Bytes that have arrived and are not consumed, where they lie: at least `least` of them in one
  // piece, or an empty span if so many are not there yet. Requires 1 <= least <= kMaxPeek. More may
  // be given; they stay valid until the next call but Write.
  virtual absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) = 0;
  // Drops the first n of the bytes that the last Peek gave.
  virtual void Consume(size_t n) = 0;

  // Moves up to to.size() bytes to `to`, from where they are (for TCP, straight from the kernel)
  // and returns how many; 0 if nothing has arrived.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) = 0;

  // For sleeping. A file descriptor that polls readable when Peek may give more, and, if
  // WantsWritable(), must also be polled for writing; -1: none, the link must be looked at.
  virtual int fd() const { return -1; }
  virtual bool WantsWritable() const { return false; }
  // Announces that this thread is about to sleep until fd() is ready, or that it no longer is.
  // PrepareToSleep returns false if something has arrived meanwhile: do not sleep.
  virtual bool PrepareToSleep() { return true; }
  virtual void WakeUp() {}

  virtual absl::string_view kind() const = 0;  // "shm", "tcp", ...

  static constexpr size_t kMaxPeek = 4096;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_LINK_H_
