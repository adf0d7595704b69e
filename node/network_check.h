// What of a role's addresses can be refused before anything starts.
#ifndef TANDEM_NODE_NETWORK_CHECK_H_
#define TANDEM_NODE_NETWORK_CHECK_H_

#include "absl/status/status.h"
#include "node/role_flags.h"

namespace tandem::node {

// INVALID_ARGUMENT, naming the flag: a host that nobody knows, an address that is not this machine's, a
// port that is taken, all hosts without a name that others could use.
absl::Status CheckAddresses(const RoleFlags& flags);

}  // namespace tandem::node

#endif  // TANDEM_NODE_NETWORK_CHECK_H_
