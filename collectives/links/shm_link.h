// A link between two processes of one host: a ring of shared memory each way
// (transport/shm_ring.h), and a Unix socket that stays open. The socket hands over the rings, is
// the doorbell (a byte is sent only to a side that said it sleeps), and ends when the other process
// ends, however it does.
//
// A Write copies once, into the ring, and publishes as it goes so that the reader begins while the
// rest is being copied; Peek gives the ring's memory. Consumed space is given back in batches, each
// side works with what it last saw of the other's cursor, and while both are awake there is no
// system call. A head is taken whole, and bodies are cut only at multiples of 64 bytes.
//
// Failure: UNAVAILABLE after the last byte, "connection closed by the peer" or, without its
// farewell, "the peer's process is gone"; DATA_LOSS if the peer's cursors are impossible.
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
  // Of each ring; measured: 1 MiB lies in the second-level cache and hides the scheduler.
  static constexpr size_t kDefaultCapacity = size_t{1} << 20;

  // The rings of a new link: [0] carries what their maker writes. They go to the peer; each side
  // maps them and may then close them. INVALID_ARGUMENT: these are no rings.
  using Rings = std::array<OwnedFd, 2>;
  static absl::StatusOr<Rings> NewRings(size_t capacity = kDefaultCapacity);
  struct Mapped {
    transport::ShmRing in, out;
  };
  static absl::StatusOr<Mapped> Map(const Rings& rings, bool maker);

  ShmLink(transport::UnixLink socket, Mapped rings);
  // Both ends, for tests, forked children and calibration.
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
  void Release();  // gives back what was consumed
  void Ring();
  void ListenToSocket();  // takes doorbell bytes; sees the end
  void Idle();            // a call that moved nothing: now and then listens
  absl::Status Ended();   // why nothing more will come; OK if it may

  transport::UnixLink socket_;
  transport::ShmRing in_, out_;
  const size_t release_at_;
  absl::Status status_;
  absl::Span<const uint8_t> seen_;  // arrived, as of the last look, and not consumed
  size_t unreleased_ = 0;           // consumed and not given back; lies before seen_
  size_t blocked_ = 0;              // bytes that the last Write did not take
  bool wants_more_ = false;         // the last Peek wanted more than was there
  bool gone_ = false;               // the peer's end of the socket is closed
  uint32_t idle_calls_ = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_SHM_LINK_H_
