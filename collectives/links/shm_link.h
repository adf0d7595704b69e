// ShmLink: a link between two processes of one host. Each direction is a ring in shared memory
// (transport/shm_ring.h). A Unix socket stays open beside the rings, with three uses. At the start
// the socket hands over the rings. Later a byte in the socket wakes a side that said it sleeps. And
// the socket ends when the peer's process ends, in whatever way.
//
// A Write copies the bytes once, into the ring. The bytes are published part by part, so that the
// reader begins while the rest is being copied. Peek returns the ring's memory. Consumed space is
// released in batches, and each side works with its last copy of the other's cursor. While both
// sides are awake no system call is made. A head is taken whole, and bodies are cut only at
// multiples of 64 bytes.
//
// Failure: UNAVAILABLE after the last byte: "connection closed by the peer", or "the peer's process
// is gone" if the peer ended without a goodbye. DATA_LOSS if the peer's cursors are impossible.
#ifndef TANDEM_COLLECTIVES_LINKS_SHM_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_SHM_LINK_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/links/link.h"
#include "transport/shm_ring.h"
#include "transport/unix_link.h"

namespace tandem::collectives {

class ShmLink final : public Link {
 public:
  // Capacity of each ring. Measured: 1 MiB fits the second-level cache and is large enough to hide
  // delays of the scheduler.
  static constexpr size_t kDefaultCapacity = size_t{1} << 20;

  // Makes the two rings of a new link: [0] carries the bytes of the side that made them. The
  // descriptors are sent to the peer. Each side maps both, and may then close the descriptors.
  // INVALID_ARGUMENT: the descriptors are not rings.
  using Rings = std::array<OwnedFd, 2>;
  static absl::StatusOr<Rings> NewRings(size_t capacity = kDefaultCapacity);
  struct Mapped {
    transport::ShmRing in, out;
  };
  static absl::StatusOr<Mapped> Map(const Rings& rings, bool maker);

  ShmLink(transport::UnixLink socket, Mapped rings);
  // Both ends of a link, for tests, forked children and calibration.
  static absl::StatusOr<std::array<std::unique_ptr<ShmLink>, 2>> NewPair(
      size_t capacity = kDefaultCapacity);

  ~ShmLink() override;

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;

  int fd() const override { return socket_.fd(); }
  bool PrepareToSleep() override;
  void WakeUp() override;
  absl::string_view kind() const override { return "shm"; }

 private:
  absl::StatusOr<size_t> WriteInParts(absl::Span<const uint8_t> head,
                                      absl::Span<const uint8_t> body);
  void Publish(size_t n);
  bool Look();     // updates seen_; false: nothing new
  void Release();  // gives consumed space back
  void Ring();
  void ListenToSocket();  // takes wake-up bytes; notices the end
  void Idle();            // after a call that moved nothing; sometimes looks at the socket
  absl::Status Ended();   // why nothing more will come; OK if more may

  transport::UnixLink socket_;
  transport::ShmRing in_, out_;
  const size_t release_at_;
  absl::Status status_;
  absl::Span<const uint8_t> seen_;  // bytes seen by the last look and not consumed
  size_t unreleased_ = 0;           // bytes consumed and not given back, right before seen_
  size_t blocked_ = 0;              // bytes that the last Write did not take
  bool wants_more_ = false;         // the last Peek wanted more bytes than there were
  bool gone_ = false;               // the peer has closed its end of the socket
  uint32_t idle_calls_ = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_SHM_LINK_H_
