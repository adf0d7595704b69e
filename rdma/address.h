// RdmaAddress: addresses of RDMA endpoints, "rdma://HOST:PORT". HOST is an address of a device.
//
// Thread safety: free functions without state.
#ifndef TANDEM_RDMA_ADDRESS_H_
#define TANDEM_RDMA_ADDRESS_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::rdma {

struct RdmaAddress {
  std::string host, port;  // "*": any
};

struct RdmaSocketAddress {
  sockaddr_storage bytes = {};
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
};

// INVALID_ARGUMENT: malformed.
absl::StatusOr<RdmaAddress> ParseRdmaAddress(absl::string_view text);
// INVALID_ARGUMENT: the host is unknown.
absl::StatusOr<RdmaSocketAddress> ResolveRdmaAddress(const RdmaAddress& address);
// The first address of an active port of this host's devices. UNAVAILABLE: there is none.
absl::StatusOr<std::string> FirstRdmaHost();

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_ADDRESS_H_
