// Makes a link to every other rank of a group that has met: shared memory between ranks of one
// host, RDMA where both have a device, TCP otherwise, or as the caller says.
//
// Of each pair the higher rank connects, and shows the group's token; ranks may come in any order
// within the deadline. Strangers, garbage and links of other groups are refused, logged, and change
// nothing. A pair whose shared memory (another user, no memory) or RDMA (no route) cannot be set up
// takes the next way, and says so in the log.
#ifndef TANDEM_COLLECTIVES_MEETING_CONNECT_LINKS_H_
#define TANDEM_COLLECTIVES_MEETING_CONNECT_LINKS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/links/link.h"
#include "collectives/links/shm_link.h"
#include "collectives/meeting/coordinator_client.h"
#include "collectives/meeting/link_ports.h"
#include "collectives/meeting/rendezvous.h"

namespace tandem::collectives {

struct ConnectOptions {
  LinkChoice links = LinkChoice::kAuto;
  size_t shm_capacity = ShmLink::kDefaultCapacity;  // of each ring
  // Its verdict ends the wait, and what fails here is reported to it; may be null.
  CoordinatorClient* watch = nullptr;
  // Asked now and then; an error ends the wait. May be empty.
  std::function<absl::Status()> interrupted;
  std::function<void(absl::string_view)> log;  // one line an event; may be empty
  // Becomes, by rank, why the link to it is of its kind; known for lower ranks only. May be null.
  std::vector<std::string>* why = nullptr;
};

// Links by rank; null at the own one. DEADLINE_EXCEEDED names the ranks that are missing; with a
// watch: what all ranks agree on. Blocks.
absl::StatusOr<std::vector<std::unique_ptr<Link>>> ConnectLinks(const GroupMembership& membership,
                                                                LinkPorts& ports,
                                                                const ConnectOptions& options,
                                                                absl::Time deadline);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_CONNECT_LINKS_H_
