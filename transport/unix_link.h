// Unix sockets between processes on one host. With them processes find each other by a name without
// a file, pass descriptors, and see at once when the other process is gone.
//
// Names are abstract. An abstract name vanishes with its process, and only processes in the same
// network namespace see it. Peers of another user are refused.
//
// Thread safety: as any descriptor: one thread at a time for each direction.
#ifndef TANDEM_TRANSPORT_UNIX_LINK_H_
#define TANDEM_TRANSPORT_UNIX_LINK_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/owned_fd.h"
#include "transport/shm_memory.h"

namespace tandem::transport {

struct UnixMessage {
  std::string bytes;
  std::vector<OwnedFd> fds;
};

// One end of a connection. Messages keep their boundaries. Only functions marked "Blocks" block.
class UnixLink {
 public:
  static constexpr size_t kMaxMessageBytes = 512;
  static constexpr size_t kMaxFds = 8;
  static constexpr size_t kMaxNameBytes = 100;

  // UNAVAILABLE: no process has this name (yet), or its queue of newcomers is full.
  // PERMISSION_DENIED: the process belongs to another user. INVALID_ARGUMENT: an impossible name.
  static absl::StatusOr<UnixLink> Connect(absl::string_view name);
  // Repeats Connect while it returns UNAVAILABLE, until `deadline`. Blocks.
  static absl::StatusOr<UnixLink> ConnectBy(absl::string_view name, absl::Time deadline);
  // Two connected ends, for example for a child process.
  static absl::StatusOr<std::pair<UnixLink, UnixLink>> Pair();

  UnixLink() = default;
  explicit UnixLink(OwnedFd socket) : socket_(std::move(socket)) {}

  // Readable when a message waits or the peer is gone.
  int fd() const { return socket_.get(); }

  // RESOURCE_EXHAUSTED: the peer reads too slowly, and nothing was sent. UNAVAILABLE: the peer is
  // gone. Requires: 1 to kMaxMessageBytes bytes, at most kMaxFds descriptors.
  absl::Status Send(absl::string_view bytes, absl::Span<const int> fds = {});

  // Returns the next message. NOT_FOUND: none waits. UNAVAILABLE: none waits and the peer is gone.
  // INVALID_ARGUMENT: the message is too long or has too many descriptors (it is dropped).
  // RESOURCE_EXHAUSTED: this process has no descriptors left (the message is dropped, too).
  absl::StatusOr<UnixMessage> Receive();
  // Waits for a message until `deadline` (DEADLINE_EXCEEDED). Blocks.
  absl::StatusOr<UnixMessage> ReceiveBy(absl::Time deadline);

  // True if everything sent before has been read and the other process is gone or has closed its
  // end.
  bool PeerIsGone() const;
  // True if the process that made the other end has died, not merely closed it: no process has its
  // number any more. False if this cannot be determined.
  bool PeerProcessIsDead() const;

 private:
  OwnedFd socket_;
};

// Accepts connections to a name.
class UnixListener {
 public:
  // UNAVAILABLE: another socket has the name.
  static absl::StatusOr<UnixListener> Bind(absl::string_view name);

  UnixListener() = default;
  int fd() const { return socket_.get(); }

  // Returns the next newcomer. NOT_FOUND: none waits. PERMISSION_DENIED: it belongs to another user
  // and was refused. RESOURCE_EXHAUSTED: there is no descriptor for it, so it was refused.
  absl::StatusOr<UnixLink> Accept();

 private:
  explicit UnixListener(OwnedFd socket);
  OwnedFd socket_;
  OwnedFd spare_;  // released to refuse a newcomer when there is no other descriptor
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_UNIX_LINK_H_
