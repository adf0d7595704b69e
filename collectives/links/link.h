// Link: a two-way stream of bytes to one other rank. Bytes arrive in order, and none is lost or
// doubled, until the link fails. One thread uses a link, that of an engine or of a mailbox. No
// call blocks. Once warm, no call allocates.
//
// The folder links/ has one implementation for each carrier.
//
// Implementations: in_memory_link.h (one process, tests), shm_link.h, tcp_link.h, transport_link.h
// (over a Transport: RDMA, ZeroMQ), frame_link.h (the base of transport_link.h; also the simulated
// network).
//
// An error from any call is final for the link. Its text says what happened ("connection reset"),
// but not the rank; the engine adds the rank.
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

  // Takes as many bytes of `head` followed by `body` as fit now, and returns their number. The
  // caller may overwrite these bytes at once. If possible, a large take is a multiple of 64 bytes
  // of `body`.
  virtual absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                                       absl::Span<const uint8_t> body) = 0;

  // Returns bytes that have arrived and are not consumed, without copying them. The span has at
  // least `least` bytes, in one piece; an empty span means that fewer have arrived. Requires 1 <=
  // least <= kMaxPeek. The span may have more than `least` bytes. Every call other than Write makes
  // the span invalid.
  virtual absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) = 0;
  // Drops the first n bytes of the span of the last Peek.
  virtual void Consume(size_t n) = 0;

  // Moves up to to.size() bytes to `to` and returns their number; 0 if nothing has arrived. TCP
  // moves them straight from the kernel.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) = 0;

  // A file descriptor to sleep on: readable when Peek may return more. If WantsWritable(), poll it
  // for writing, too. -1: there is none, and the caller must look at the link.
  virtual int fd() const { return -1; }
  virtual bool WantsWritable() const { return false; }
  // PrepareToSleep announces that this thread is about to sleep until fd() is ready. False:
  // something has arrived meanwhile, so do not sleep. WakeUp announces that the thread is awake
  // again.
  virtual bool PrepareToSleep() { return true; }
  virtual void WakeUp() {}

  virtual absl::string_view kind() const = 0;  // "shm", "tcp", ...

  static constexpr size_t kMaxPeek = 4096;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_LINK_H_
