// TcpLink: a link over one TCP connection.
//
// Receiving. Peek fills a buffer, small enough to stay in the processor's cache, with as much as
// one system call gives. So a small message comes with its header in one call, and a large message
// is reduced from the cache. Read moves bytes from the kernel to the caller's memory; if more bytes
// follow (the next header), the same call takes them into the buffer.
//
// Failure: UNAVAILABLE. "connection closed by the peer" comes after the last byte; "connection
// reset by the peer" and "connection timed out" come at once.
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
  // Large enough to make the cost of a system call small, small enough for the second-level cache.
  static constexpr size_t kBufferBytes = size_t{256} << 10;

  // `socket` is a connected, non-blocking stream socket (tcp_socket.h). `received` are bytes that
  // were read from it already, at most kBufferBytes.
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
  // Calls recvmsg. Returns 0 if nothing has arrived. Sets status_ at the end of the stream and on
  // failure.
  size_t Receive(iovec* parts, int count);

  OwnedFd socket_;
  absl::Status status_;  // why the connection ended
  std::unique_ptr<uint8_t, FreeAligned> buffer_;
  size_t begin_ = 0, end_ = 0;  // bytes that have arrived and are not consumed
  bool full_ = false;           // the last Write did not take all bytes
  bool unseen_ = false;         // the buffer has bytes that no call has returned
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TCP_LINK_H_
