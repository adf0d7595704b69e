// GroupMembership: the members of a collective group, as each member knows the others after the
// rendezvous (coordinator.h). For each member there are the addresses to reach it, and the host and
// device that it may share.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "transport/job_keys.h"
#include "transport/proof.h"

namespace tandem::rendezvous {
class Member;  // proto/collectives.proto
}

namespace tandem::collectives {

// GroupSecurity keeps strangers out of a group.
struct GroupSecurity {
  // The keys of the job's token; null: anybody who knows the group's own token may connect.
  std::shared_ptr<const transport::JobKeys> keys = nullptr;
  // With keys: links between hosts are encrypted.
  bool encrypted = false;

  bool encrypts() const { return keys != nullptr && encrypted; }
};

// Names of the side that accepts a connection with a proof (Proof::Proof).
inline constexpr char kCoordinatorPlace[] = "coordinator", kLinkPlace[] = "link ";
// A proof for one connection; null without keys.
std::unique_ptr<transport::Proof> NewProof(transport::Proof::Side side,
                                           const std::shared_ptr<const transport::JobKeys>& keys,
                                           absl::string_view place);

// For errors about a wrong token.
inline constexpr char kTokenHint[] = "give all processes the same TANDEM_TOKEN, or none of them";

struct GroupMember {
  std::string host;                       // equal on ranks that can share memory; empty: it cannot
  std::string tcp_address;                // address for links over TCP
  std::string unix_name;                  // Unix socket for links on its host; empty: none
  std::string about;                      // for messages: "host name, process 4711"
  std::string rdma_address = "";          // rdma://host:port for links; empty: none
  std::string zmq_address = "";           // tcp://host:port for links over ZeroMQ; empty: none
  std::vector<std::string> devices = {};  // UUIDs of the GPUs that it can use
};

// Conversion from and to the message.
GroupMember MemberFrom(const rendezvous::Member& member);
void WriteMember(const GroupMember& member, rendezvous::Member* out);

struct GroupMembership {
  int rank = 0;
  std::vector<GroupMember> members;  // by rank
  std::string token;                 // secret of the group; links of others do not have it

  int ranks() const { return static_cast<int>(members.size()); }
  bool SameHost(int a, int b) const;
  // Hosts by rank, numbered from 0 in the order of ranks. A rank that cannot share memory has a
  // number of its own.
  std::vector<int> HostOfRank() const;
};

// A string that is equal in processes that can share memory. The string names this boot of this
// machine and the network namespace, in which the Unix sockets live. Empty if the system does not
// tell.
std::string HostIdentity();
// "host name, process 4711".
std::string AboutThisProcess();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_RENDEZVOUS_H_
