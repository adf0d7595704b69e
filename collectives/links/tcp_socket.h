// TCP sockets as links use them: non-blocking, closed on exec, tuned for a few long-lived
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
  // Port 0: a free one. INVALID_ARGUMENT: no address of this machine. UNAVAILABLE: it is taken.
  static absl::StatusOr<TcpListener> Bind(absl::string_view address);

  TcpListener() = default;
  int fd() const { return socket_.get(); }  // readable when a newcomer waits
  bool valid() const { return socket_.valid(); }
  const std::string& address() const { return address_; }  // with the true port

  // The next newcomer, tuned. NOT_FOUND: none waits.
  absl::StatusOr<OwnedFd> Accept();

 private:
  TcpListener(OwnedFd socket, std::string address);
  OwnedFd socket_;
  std::string address_;
};

// A tuned connection; tries again while nobody listens there, until `deadline`. Blocks.
// UNAVAILABLE: could not, and why. INVALID_ARGUMENT: malformed address.
absl::StatusOr<OwnedFd> ConnectTcpBy(absl::string_view address, absl::Time deadline);

// The numeric address of this machine from which `address` is reached, without a port: where a
// process that talks to a peer there can be found by it.
absl::StatusOr<std::string> LocalHostTowards(absl::string_view address);

// Two connected sockets on the loopback device, for tests and calibration.
absl::StatusOr<std::pair<OwnedFd, OwnedFd>> TcpPair();

// What is set on each connection, and why:
//   - no delay: a small message must not wait for an acknowledgement;
//   - congestion control "reno": on one host and in a quiet network it reaches full speed at once,
//     where pacing algorithms hold back (up to a third of a large allreduce on loopback);
//   - keep-alive after 3 s, three times: a peer whose machine has vanished is seen while we wait
//     for it. (TCP_USER_TIMEOUT is not set: it would also end the connection to a peer that lives
//     and is slow to read.)
// What the system does not allow is left as it is: none of it changes what arrives.
void TuneTcp(int fd);

// How a system call on a connection failed, in the words of links, e.g. UNAVAILABLE: "connection
// reset by the peer".
absl::Status ConnectionError(int error);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TCP_SOCKET_H_
