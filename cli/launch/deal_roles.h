// DealRoles distributes the roles of a job over the ranks of a launch.
#ifndef TANDEM_CLI_LAUNCH_DEAL_ROLES_H_
#define TANDEM_CLI_LAUNCH_DEAL_ROLES_H_

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

// Returns the workers of the ranks [first, first + here), which share a host: first the workers of
// rank `first`, then those of the next rank. A worker's place in this list is its LOCAL_RANK, and
// a script takes the GPU LOCAL_RANK modulo the number of GPUs that it sees. The workers of a rank
// have consecutive places, so they take different GPUs, whether their rank sees all GPUs of the
// host or only its own.
std::vector<int> WorkersHere(int servers, int workers, int first, int here, int ranks);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_DEAL_ROLES_H_
