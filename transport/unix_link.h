// Unix sockets between processes of one host: they find each other by a name without a file, hand
// over descriptors, and see at once when the other process is gone.
//
// Names are abstract: they vanish with their process, and are seen only inside one network
// namespace. A peer that is run by another user is refused.
//
// Thread safety: as any descriptor: one thread at a time a direction.
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

// One end of a connection. Messages keep their boundaries; nothing blocks but what says so.
class UnixLink {
 public:
  static constexpr size_t kMaxMessageBytes = 512;
  static constexpr size_t kMaxFds = 8;
  static constexpr size_t kMaxNameBytes = 100;

  // UNAVAILABLE: nobody has this name (yet), or its queue of newcomers is full. PERMISSION_DENIED:
  // it is another user's. INVALID_ARGUMENT: no possible name.
  static absl::StatusOr<UnixLink> Connect(absl::string_view name);
  // Tries again and again while UNAVAILABLE, until `deadline`. Blocks.
  static absl::StatusOr<UnixLink> ConnectBy(absl::string_view name, absl::Time deadline);
  // Two connected ends, e.g. for a child process.
  static absl::StatusOr<std::pair<UnixLink, UnixLink>> Pair();

  UnixLink() = default;
  explicit UnixLink(OwnedFd socket) : socket_(std::move(socket)) {}

  // Readable when a message waits or the peer is gone.
  int fd() const { return socket_.get(); }

  // RESOURCE_EXHAUSTED: the peer reads too slowly, nothing was sent. UNAVAILABLE: it is gone.
  // Requires: 1 to kMaxMessageBytes bytes, at most kMaxFds descriptors.
  absl::Status Send(absl::string_view bytes, absl::Span<const int> fds = {});

  // The next message; NOT_FOUND: none waits; UNAVAILABLE: none waits and the peer is gone;
  // INVALID_ARGUMENT: one that is too long or has too many descriptors (it is dropped);
  // RESOURCE_EXHAUSTED: this process may have no more descriptors (it is dropped, too).
  absl::StatusOr<UnixMessage> Receive();
  // Waits for a message until `deadline` (DEADLINE_EXCEEDED). Blocks.
  absl::StatusOr<UnixMessage> ReceiveBy(absl::Time deadline);

  // All that was sent before is read, and the other process is gone or has closed its end.
  bool PeerIsGone() const;
  // Not merely closed: no process has the number that made the other end. False if it cannot be
  // seen.
  bool PeerProcessIsDead() const;

 private:
  OwnedFd socket_;
};

// Takes connections to a name.
class UnixListener {
 public:
  // UNAVAILABLE: somebody else has the name.
  static absl::StatusOr<UnixListener> Bind(absl::string_view name);

  UnixListener() = default;
  int fd() const { return socket_.get(); }

  // The next newcomer. NOT_FOUND: none waits; PERMISSION_DENIED: another user's, refused;
  // RESOURCE_EXHAUSTED: no descriptor is left for it, refused.
  absl::StatusOr<UnixLink> Accept();

 private:
  explicit UnixListener(OwnedFd socket);
  OwnedFd socket_;
  OwnedFd spare_;  // given up to refuse a newcomer when there is no other descriptor
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_UNIX_LINK_H_
