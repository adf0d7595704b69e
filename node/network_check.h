// Checks the addresses of a role before the role starts, and finds out why one does not answer.
#ifndef TANDEM_NODE_NETWORK_CHECK_H_
#define TANDEM_NODE_NETWORK_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "node/role_flags.h"

namespace tandem::node {

// Listens for a moment where a role with these flags would. INVALID_ARGUMENT: a host that nobody
// knows, an address that is not this machine's, all hosts without a name that others could use.
// UNAVAILABLE: the port is taken.
absl::Status CheckBind(const std::string& bind, const std::string& advertise);

// INVALID_ARGUMENT, naming the flag: what CheckBind refuses, a scheduler whose host nobody knows.
absl::Status CheckAddresses(const RoleFlags& flags);

// Whether processes of this host can reach each other through 127.0.0.1. INVALID_ARGUMENT: no, and why.
absl::Status CheckLoopback();

// Why no scheduler answers at the address, by a connection that is tried for a moment: "Connection
// refused; hint: is it running?".
std::string WhyNoAnswer(const std::string& address);

}  // namespace tandem::node

#endif  // TANDEM_NODE_NETWORK_CHECK_H_
