// Where the processes of one rank listen, and where the scheduler may be: at --scheduler, at
// OUT/address on a shared folder, or at the host of rank 0 and the port of the launch.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_AGENT_NETWORK_H_
#define TANDEM_CLI_LAUNCH_AGENT_NETWORK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/launch/role_commands.h"
#include "node/launch_environment.h"

namespace tandem::cli {

// Where the scheduler and the roles of rank 0 listen. `scheduler`, `bind`, `advertise`: as the user
// gave them, or empty. `out_is_shared`: other ranks may find the address in the folder of the run.
// An error says that the port is taken, or that other ranks could not find the scheduler.
absl::StatusOr<RoleNetwork> NetworkOfFirstRank(const node::Launch& launch,
                                               const std::string& scheduler,
                                               const std::string& bind,
                                               const std::string& advertise, bool out_is_shared);

// The same for the roles of another rank, which has found the scheduler at this address.
RoleNetwork NetworkOfOtherRank(const std::string& scheduler, const std::string& bind,
                               const std::string& advertise);

// An address at which the scheduler of the launch may be.
struct Candidate {
  std::string address;
  std::string run;     // number that its run must have, as OUT/run says; empty: any
  std::string launch;  // id that its launch must have; empty: any
};
// The addresses to try now, best first. `out`: folder of the run; may be empty.
std::vector<Candidate> Candidates(const node::Launch& launch, const std::string& scheduler,
                                  const std::string& out);

// The address of this host by which `toward` (a host, or empty) reaches it.
std::string HostAddress(const std::string& toward);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_AGENT_NETWORK_H_
