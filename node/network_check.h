// Checks the addresses of a role before the role starts, and finds out why an address does not
// answer.
#ifndef TANDEM_NODE_NETWORK_CHECK_H_
#define TANDEM_NODE_NETWORK_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "node/role_flags.h"

namespace tandem::node {

// Listens for a moment where a role with these flags would listen. INVALID_ARGUMENT: the host is
// unknown, the address does not belong to this machine, or `bind` names all hosts and `advertise`
// is empty, so others do not know a name for this host. UNAVAILABLE: the port is taken.
absl::Status CheckBind(const std::string& bind, const std::string& advertise);

// INVALID_ARGUMENT, naming the flag: an address that CheckBind refuses, or a scheduler whose host
// is unknown.
absl::Status CheckAddresses(const RoleFlags& flags);

// Checks that processes of this host can reach each other through 127.0.0.1. INVALID_ARGUMENT: they
// cannot; the message says why.
absl::Status CheckLoopback();

// Tries to connect for a moment and returns why no scheduler answers at the address: "Connection
// refused; hint: is it running?".
std::string WhyNoAnswer(const std::string& address);

// Tries to connect for a moment. AnswersAsZmq: a program with ZeroMQ answers at the address.
// IsRefused: the host answers that nobody listens there.
bool AnswersAsZmq(const std::string& address);
bool IsRefused(const std::string& address);

}  // namespace tandem::node

#endif  // TANDEM_NODE_NETWORK_CHECK_H_
