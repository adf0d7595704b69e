// ConnectLinks: makes a link to every other rank of a group after its rendezvous. Ranks of one host
// share memory; ranks that both have an RDMA device use RDMA; all others use TCP. The caller can
// choose one kind for all. If links are encrypted (LinkPorts), ranks of different hosts use ZeroMQ.
//
// In each pair the higher rank connects and sends the group's token. Ranks may come in any order
// within the deadline. Strangers, garbage and links of other groups are refused and logged, and
// change nothing. If shared memory (another user, no memory) or RDMA (no route) fails for a pair,
// the pair uses the next kind of link and logs why.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_CONNECT_LINKS_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_CONNECT_LINKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/links/link.h"
#include "collectives/links/shm_link.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "collectives/rendezvous/link_ports.h"
#include "collectives/rendezvous/rendezvous.h"

namespace tandem::collectives {

struct ConnectOptions {
  LinkChoice links = LinkChoice::kAuto;
  size_t shm_capacity = ShmLink::kDefaultCapacity;  // bytes of each ring
  // A verdict of the watch ends the wait, and failures here are reported to it. May be null.
  CoordinatorClient* watch = nullptr;
  // Called from time to time; an error ends the wait. May be empty.
  std::function<absl::Status()> interrupted;
  std::function<void(absl::string_view)> log;  // one line for each event; may be empty
  // Receives, by rank, the reason for the kind of each link; set for lower ranks only. May be null.
  std::vector<std::string>* why = nullptr;
};

// Returns the links by rank; null at the own rank. DEADLINE_EXCEEDED names the ranks that are
// missing; with a watch the error is the one that all ranks agree on. Blocks.
absl::StatusOr<std::vector<std::unique_ptr<Link>>> ConnectLinks(const GroupMembership& membership,
                                                                LinkPorts& ports,
                                                                const ConnectOptions& options,
                                                                absl::Time deadline);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_CONNECT_LINKS_H_
