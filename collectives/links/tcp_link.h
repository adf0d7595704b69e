// A link over one TCP connection.
//
// Receiving. Peek fills a buffer that stays in the processor's cache, as large as one call gives,
// so that a small message comes with its header in one system call and a large one is reduced from
// cache. Read goes from the kernel to the caller's memory; what follows it at once (the next
// header) comes with the same call.
//
// Failure: UNAVAILABLE, "connection closed by the peer" after the last byte, or at once "connection
// reset by the peer" or "connection timed out".
#ifndef TANDEM_COLLECTIVES_LINKS_TCP_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_TCP_LINK_H_

#include <sys/uio.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/owned_fd.h"
#include "collectives/links/link.h"

namespace tandem::collectives {

class TcpLink final : public Link {
 public:
  // Large enough to hide the system call, small enough for the second-level cache.
  static constexpr size_t kBufferBytes = size_t{256} << 10;

  // A connected, non-blocking stream socket (tcp_socket.h), and bytes that have been received from
  // it already, at most kBufferBytes.
  explicit TcpLink(OwnedFd socket, absl::Span<const uint8_t> received = {});

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;

  int fd() const override { return socket_.get(); }
  bool WantsWritable() const override { return full_; }
  bool PrepareToSleep() override { return !unseen_; }
  absl::string_view kind() const override { return "tcp"; }

 private:
  struct FreeAligned {
    void operator()(uint8_t* p) const;
  };
  size_t held() const { return end_ - begin_; }
  size_t TakeHeld(absl::Span<uint8_t> to);
  // recvmsg; 0 if nothing has arrived. At the end of the stream or on failure: sets status_.
  size_t Receive(iovec* parts, int count);

  OwnedFd socket_;
  absl::Status status_;  // of the connection
  std::unique_ptr<uint8_t, FreeAligned> buffer_;
  size_t begin_ = 0, end_ = 0;  // arrived and not consumed
  bool full_ = false;           // the last Write did not take all
  bool unseen_ = false;         // bytes in the buffer that no call has told of
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TCP_LINK_H_
