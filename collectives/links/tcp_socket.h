// TCP sockets as links use them: non-blocking, closed on exec, and tuned for a few long-lived
// connections that carry both tiny messages and large pieces.
//
// Addresses are "host:port" or "[v6]:port"; a host may be a name.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_LINKS_TCP_SOCKET_H_
#define TANDEM_COLLECTIVES_LINKS_TCP_SOCKET_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"

namespace tandem::collectives {

class TcpListener {
 public:
  // Listens on an address. Port 0 picks a free port. INVALID_ARGUMENT: the address does not belong
  // to this machine. UNAVAILABLE: the address is in use.
  static absl::StatusOr<TcpListener> Bind(absl::string_view address);

  TcpListener() = default;
  int fd() const { return socket_.get(); }  // readable when a new connection waits
  bool valid() const { return socket_.valid(); }
  const std::string& address() const { return address_; }  // with the real port

  // The next new connection, tuned. NOT_FOUND: none waits.
  absl::StatusOr<OwnedFd> Accept();

 private:
  TcpListener(OwnedFd socket, std::string address);
  OwnedFd socket_;
  std::string address_;
};

// A tuned connection. While nobody listens at the address it tries again, until `deadline`. Blocks.
// UNAVAILABLE: not connected in time; the text says why. INVALID_ARGUMENT: the address is
// malformed.
absl::StatusOr<OwnedFd> ConnectTcpBy(absl::string_view address, absl::Time deadline);

// The numeric address of this machine from which `address` is reached, without a port. A peer at
// `address` can reach this process there.
absl::StatusOr<std::string> LocalHostTowards(absl::string_view address);

// Two connected sockets on the loopback device, for tests and calibration.
absl::StatusOr<std::pair<OwnedFd, OwnedFd>> TcpPair();

// Sets these options on a connection:
//   - no delay: a small message must not wait for an acknowledgement;
//   - congestion control "reno": on one host and in a quiet network it reaches full speed at once.
//     Algorithms that pace hold back there (up to a third of a large allreduce on loopback);
//   - keep-alive after 3 s, three times: a peer whose machine has vanished is noticed even while
//     this side only waits. (TCP_USER_TIMEOUT is not set: that option would also end the connection
//     to a live peer that is slow to read.)
// Options that the system refuses stay as they are: none of them changes the bytes that arrive.
void TuneTcp(int fd);

// The status of a failed system call on a connection, in the words of links. Example: UNAVAILABLE:
// "connection reset by the peer".
absl::Status ConnectionError(int error);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TCP_SOCKET_H_
