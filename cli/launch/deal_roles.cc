#include "cli/launch/deal_roles.h"

namespace tandem::cli {

DealtRoles DealRoles(int servers, int workers, int rank, int ranks) {
  DealtRoles dealt;
  dealt.scheduler = rank == 0;
  for (int card = rank; card < servers + workers; card += ranks) {
    if (card < servers) {
      dealt.servers.push_back(card);
    } else {
      dealt.workers.push_back(card - servers);
    }
  }
  return dealt;
}

std::vector<int> WorkersHere(int servers, int workers, int first, int here, int ranks) {
  std::vector<int> found;
  for (int rank = first; rank < first + here; ++rank) {
    const std::vector<int> dealt = DealRoles(servers, workers, rank, ranks).workers;
    found.insert(found.end(), dealt.begin(), dealt.end());
  }
  return found;
}

}  // namespace tandem::cli
