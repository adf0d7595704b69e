#include "cli/deal_roles.h"

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

}  // namespace tandem::cli
