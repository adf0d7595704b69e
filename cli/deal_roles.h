// DealRoles distributes the roles of a job over the ranks of a launch.
#ifndef TANDEM_CLI_DEAL_ROLES_H_
#define TANDEM_CLI_DEAL_ROLES_H_

#include <vector>

namespace tandem::cli {

// The roles that one rank starts.
struct DealtRoles {
  bool scheduler = false;
  std::vector<int> servers, workers;  // their numbers, ascending

  bool empty() const { return !scheduler && servers.empty() && workers.empty(); }
};

// The scheduler is on rank 0. The servers, and then the workers, are assigned to the ranks in turn
// (round-robin), from rank 0. Requires: 0 <= rank < ranks.
DealtRoles DealRoles(int servers, int workers, int rank, int ranks);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_DEAL_ROLES_H_
