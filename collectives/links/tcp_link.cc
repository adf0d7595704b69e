#include "collectives/links/tcp_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/check.h"
#include "collectives/links/tcp_socket.h"

namespace tandem::collectives {

void TcpLink::FreeAligned::operator()(uint8_t* p) const { std::free(p); }

TcpLink::TcpLink(OwnedFd socket, absl::Span<const uint8_t> received)
    : socket_(std::move(socket)),
      buffer_(static_cast<uint8_t*>(std::aligned_alloc(4096, kBufferBytes))) {
  TANDEM_CHECK(buffer_ != nullptr && received.size() <= kBufferBytes);
  std::copy(received.begin(), received.end(), buffer_.get());
  end_ = received.size();
  unseen_ = end_ > 0;
}

absl::StatusOr<size_t> TcpLink::Write(absl::Span<const uint8_t> head,
                                      absl::Span<const uint8_t> body) {
  if (!status_.ok()) return status_;
  iovec parts[2] = {{const_cast<uint8_t*>(head.data()), head.size()},
                    {const_cast<uint8_t*>(body.data()), body.size()}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  ssize_t n;
  do {
    n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno != EAGAIN) return status_ = ConnectionError(errno);
  const size_t taken = n < 0 ? 0 : static_cast<size_t>(n);
  full_ = taken < head.size() + body.size();
  return taken;
}

size_t TcpLink::Receive(iovec* parts, int count) {
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<size_t>(count);
  ssize_t n;
  do {
    n = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  } while (n < 0 && errno == EINTR);
  if (n > 0) return static_cast<size_t>(n);
  if (n == 0) {
    status_ = absl::UnavailableError("connection closed by the peer");
  } else if (errno != EAGAIN) {
    status_ = ConnectionError(errno);
  }
  return 0;
}

absl::StatusOr<absl::Span<const uint8_t>> TcpLink::Peek(size_t least) {
  TANDEM_CHECK(least >= 1 && least <= kMaxPeek);
  unseen_ = false;
  if (held() < least && status_.ok()) {
    if (begin_ > 0) std::memmove(buffer_.get(), buffer_.get() + begin_, held());
    end_ = held();
    begin_ = 0;
    iovec room = {buffer_.get() + end_, kBufferBytes - end_};
    end_ += Receive(&room, 1);
  }
  if (held() >= least) return absl::MakeConstSpan(buffer_.get() + begin_, held());
  if (!status_.ok()) return status_;
  return absl::Span<const uint8_t>();
}

void TcpLink::Consume(size_t n) {
  TANDEM_CHECK(n <= held());
  begin_ += n;
}

size_t TcpLink::TakeHeld(absl::Span<uint8_t> to) {
  const size_t n = std::min(held(), to.size());
  std::copy_n(buffer_.get() + begin_, n, to.data());
  begin_ += n;
  return n;
}

absl::StatusOr<size_t> TcpLink::Read(absl::Span<uint8_t> to) {
  const size_t from_buffer = TakeHeld(to);
  unseen_ = held() > 0;
  if (from_buffer == to.size()) return from_buffer;
  if (!status_.ok()) {
    if (from_buffer > 0) return from_buffer;
    return status_;
  }
  begin_ = end_ = 0;  // the buffer is empty now
  const absl::Span<uint8_t> rest = to.subspan(from_buffer);
  iovec parts[2] = {{rest.data(), rest.size()}, {buffer_.get(), kMaxPeek}};
  const size_t received = Receive(parts, 2);
  end_ = received - std::min(received, rest.size());
  unseen_ = end_ > 0;
  const size_t n = from_buffer + received - end_;
  if (n == 0 && !status_.ok()) return status_;
  return n;
}

}  // namespace tandem::collectives
