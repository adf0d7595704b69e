// Addresses of ZeroMQ endpoints in TCP, tcp://HOST:PORT: taken apart, put together, and names turned
// into numbers. libzmq takes names of network devices alone where it binds, and needs to be told of
// IPv6 before.
//
// HOST is a name, an IPv4 address, an IPv6 address in brackets, or, to bind, the name of a network
// device or * for all hosts. A name with several addresses means its first IPv4 address to those
// that bind; those that connect try all, IPv4 first.
//
// Thread safety: free functions; any thread. Those that resolve a name may wait for a server of names.
#ifndef TANDEM_TRANSPORT_TCP_ADDRESS_H_
#define TANDEM_TRANSPORT_TCP_ADDRESS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::transport {

struct TcpAddress {
  std::string host;  // without brackets
  std::string port;  // a number, or * for any free one

  // False for ipc:// and the like; then both parts are empty.
  bool valid() const { return !host.empty(); }
  bool AllHosts() const { return host == "*" || host == "0.0.0.0" || host == "::"; }
  bool IsIpv6() const { return host.find(':') != std::string::npos; }
  // "tcp://[::1]:7000".
  std::string ToString() const;
};

TcpAddress SplitTcpAddress(absl::string_view address);

// "10.0.0.1", "[::1]": a host as it stands in an address.
std::string HostInAddress(absl::string_view host);

// The same address with a number for its host, or * as it was; any address that is not TCP as it is.
// INVALID_ARGUMENT: nobody knows the host.
absl::StatusOr<std::string> ResolveToBind(const std::string& address);

// The addresses, with numbers for hosts, at which a connection may be tried, in this order; `address`
// itself if it is not TCP, or nobody knows the host now.
std::vector<std::string> ResolveToConnect(const std::string& address);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_TCP_ADDRESS_H_
