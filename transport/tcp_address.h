// Splits and builds the TCP addresses of ZeroMQ endpoints, tcp://HOST:PORT, and resolves names to
// numbers. libzmq cannot do this itself: where it binds it accepts only names of network devices,
// and it must be told about IPv6 in advance.
//
// HOST is a name, an IPv4 address or an IPv6 address in brackets. For bind it can also be the name
// of a network device, or * for all hosts. If a name has several addresses, bind takes its first
// IPv4 address, and connect tries all addresses, IPv4 first.
//
// Thread safety: free functions; any thread. Functions that resolve a name may wait for a name
// server.
#ifndef TANDEM_TRANSPORT_TCP_ADDRESS_H_
#define TANDEM_TRANSPORT_TCP_ADDRESS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::transport {

struct TcpAddress {
  std::string host;  // without brackets
  std::string port;  // a number, or * for any free port

  // False for ipc:// and similar addresses; then both parts are empty.
  bool valid() const { return !host.empty(); }
  bool AllHosts() const { return host == "*" || host == "0.0.0.0" || host == "::"; }
  bool IsIpv6() const { return host.find(':') != std::string::npos; }
  // For example "tcp://[::1]:7000".
  std::string ToString() const;
};

// Digits of the number of an endpoint (zmq_transport.h), hexadecimal.
inline constexpr size_t kEndpointNumberDigits = 32;
// Splits an address into what libzmq understands and the number of the endpoint. The number follows
// a '#'. It is empty if the address ends otherwise.
std::pair<std::string, std::string> SplitEndpointNumber(absl::string_view address);

// Leaves out the number of an endpoint.
TcpAddress SplitTcpAddress(absl::string_view address);

// Whether only processes of this host reach the host: localhost, 127.0.0.1 and its like, or ::1.
// Other names are not looked up, so they count as hosts of the network.
bool IsLoopbackHost(absl::string_view host);

// The host as it stands in an address: "10.0.0.1", "[::1]".
std::string HostInAddress(absl::string_view host);

// Returns the address with its host as a number; * stays *. Addresses that are not TCP are returned
// unchanged. INVALID_ARGUMENT: the host is unknown.
absl::StatusOr<std::string> ResolveToBind(const std::string& address);

// Returns the addresses to try, in this order, with hosts as numbers. Returns `address` itself if
// it is not TCP, or if its host is unknown at present.
std::vector<std::string> ResolveToConnect(const std::string& address);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_TCP_ADDRESS_H_
