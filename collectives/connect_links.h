// Makes a link to every other rank of a group that has met: shared memory between ranks of one
// host, TCP otherwise, or as the caller says.
//
// Of each pair the higher rank connects, and shows the group's token; ranks may come in any order
// within the deadline. Strangers, garbage and links of other groups are refused, logged, and change
// nothing. A pair of one host whose shared memory cannot be set up (another user, no memory) takes
// TCP, and says so in the log.
#ifndef TANDEM_COLLECTIVES_CONNECT_LINKS_H_
#define TANDEM_COLLECTIVES_CONNECT_LINKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/coordinator_client.h"
#include "collectives/link.h"
#include "collectives/links/shm_link.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous.h"
#include "transport/unix_link.h"

namespace tandem {

// Where this process takes links. Opened before the group meets, so that the others can be told;
// serves one group at a time, and its successors after a shrink.
class LinkPorts {
 public:
  // `host`: the address under which other ranks reach this one (LocalHostTowards in tcp_socket.h
  // finds it).
  static absl::StatusOr<LinkPorts> Open(absl::string_view host = "127.0.0.1");

  // This process as a member: host, addresses, about; no GPU.
  GroupMember member() const;
  TcpListener& tcp() { return tcp_; }
  UnixListener& local() { return local_; }

 private:
  TcpListener tcp_;
  UnixListener local_;
  std::string local_name_;
};

enum class LinkChoice { kAuto, kTcp, kShm };

struct ConnectOptions {
  LinkChoice links = LinkChoice::kAuto;
  size_t shm_capacity = ShmLink::kDefaultCapacity;  // of each ring
  // Its verdict ends the wait, and what fails here is reported to it; may be null.
  CoordinatorClient* watch = nullptr;
  std::function<void(absl::string_view)> log;  // one line an event; may be empty
};

// Links by rank; null at the own one. DEADLINE_EXCEEDED names the ranks that are missing; with a
// watch: what all ranks agree on. Blocks.
absl::StatusOr<std::vector<std::unique_ptr<Link>>> ConnectLinks(const Membership& membership,
                                                                LinkPorts& ports,
                                                                const ConnectOptions& options,
                                                                absl::Time deadline);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_CONNECT_LINKS_H_
