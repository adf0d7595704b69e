#include "rdma/address.h"

#include <netdb.h>

#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "rdma/devices.h"

namespace tandem::rdma {
namespace {

// The IPv4 address in an IPv4-mapped GID; RoCE v2 devices show their addresses this way. Empty for
// other GIDs.
std::string HostOfGid(const RdmaGid& gid) {
  static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(gid.data(), kMapped, sizeof kMapped) != 0) return "";
  return absl::StrCat(gid[12], ".", gid[13], ".", gid[14], ".", gid[15]);
}

}  // namespace

absl::StatusOr<RdmaAddress> ParseRdmaAddress(absl::string_view text) {
  const absl::Status malformed =
      absl::InvalidArgumentError(absl::StrCat("address ", text, ": expected rdma://HOST:PORT"));
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "rdma://")) return malformed;
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return malformed;
  RdmaAddress address;
  address.host = std::string(absl::StripSuffix(absl::StripPrefix(rest.substr(0, colon), "["), "]"));
  address.port = std::string(rest.substr(colon + 1));
  int port = 0;
  if (address.port != "*" && (!absl::SimpleAtoi(address.port, &port) || port < 1 || port > 65535)) {
    return malformed;
  }
  return address;
}

absl::StatusOr<RdmaSocketAddress> ResolveRdmaAddress(const RdmaAddress& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const char* const port = address.port == "*" ? nullptr : address.port.c_str();
  if (const int error = getaddrinfo(address.host.c_str(), port, &hints, &found); error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host ", address.host, ": ", gai_strerror(error)));
  }
  RdmaSocketAddress out;
  std::memcpy(&out.bytes, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return out;
}

absl::StatusOr<std::string> FirstRdmaHost() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<RdmaDevice> devices, ListRdmaDevices());
  for (const RdmaDevice& device : devices) {
    for (const RdmaPort& port : device.ports) {
      if (port.state != RdmaPortState::kActive) continue;
      for (const RdmaGid& gid : port.gids) {
        if (const std::string host = HostOfGid(gid); !host.empty()) return host;
      }
    }
  }
  return absl::UnavailableError(
      "no RDMA device has an active port with an IPv4 address (name one: rdma://HOST:*)");
}

}  // namespace tandem::rdma
