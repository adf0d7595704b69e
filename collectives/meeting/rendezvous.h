// The members of a collective group, as each of them knows the others once they have met
// (coordinator.h): how they are reached, and which of them share a host or a device.
#ifndef TANDEM_COLLECTIVES_MEETING_RENDEZVOUS_H_
#define TANDEM_COLLECTIVES_MEETING_RENDEZVOUS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::rendezvous {
class Member;  // proto/collectives.proto
}

namespace tandem::collectives {

struct GroupMember {
  std::string host;               // equal on ranks that can share memory; empty: none can
  std::string gpu;                // equal on ranks that use the same device; empty: none
  std::string tcp_address;        // where it takes links
  std::string unix_name;          // where it takes links on its host; empty: nowhere
  std::string about;              // for messages: "host name, process 4711"
  std::string rdma_address = "";  // rdma://host:port where it takes links; empty: nowhere
  std::string zmq_address = "";  // tcp://host:port where it takes links over ZeroMQ; empty: nowhere
};

// As messages have it.
GroupMember MemberFrom(const rendezvous::Member& member);
void WriteMember(const GroupMember& member, rendezvous::Member* out);

struct GroupMembership {
  int rank = 0;
  std::vector<GroupMember> members;  // by rank
  std::string token;                 // links of other groups and strangers do not have it
  // After a shrink: the ranks that these members had in the group before, and which of its ranks
  // are not here any more, and why.
  std::vector<int> previous_rank;
  std::vector<std::pair<int, std::string>> lost;

  int ranks() const { return static_cast<int>(members.size()); }
  bool SameHost(int a, int b) const;
  // Hosts numbered from 0 in the order of ranks; a rank that shares none has a number of its own.
  std::vector<int> HostOfRank() const;
};

// What processes have in common that can share memory: this boot of this machine, and the
// namespaces in which sockets and processes are seen. Empty if the system does not tell.
std::string HostIdentity();
// "host name, process 4711".
std::string AboutThisProcess();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_RENDEZVOUS_H_
