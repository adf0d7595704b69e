#include "transport/tcp_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tandem::transport {
namespace {

socklen_t SizeOf(const sockaddr& address) {
  return address.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

// For example "10.0.0.1" or "fe80::1%eth0".
std::string Number(const sockaddr& address) {
  char host[NI_MAXHOST] = "";
  (void)getnameinfo(&address, SizeOf(address), host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return host;
}

// Puts IPv4 addresses first and otherwise keeps the system's order.
void PutIpv4First(std::vector<std::string>* hosts) {
  std::stable_partition(hosts->begin(), hosts->end(), [](const std::string& host) {
    return host.find(':') == std::string::npos;
  });
}

absl::StatusOr<std::vector<std::string>> AddressesOf(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), nullptr, &hints, &found); failed != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host '", host, "' is not known: ", gai_strerror(failed)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::vector<std::string> hosts;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    std::string number = Number(*at->ai_addr);
    if (!number.empty()) hosts.push_back(std::move(number));
  }
  if (hosts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("host '", host, "' has no address"));
  }
  PutIpv4First(&hosts);
  return hosts;
}

// The addresses of a network device.
absl::StatusOr<std::vector<std::string>> AddressesOfDevice(const std::string& device) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return absl::InvalidArgumentError("network devices are not known");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(all, &freeifaddrs);
  std::vector<std::string> hosts;
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || device != at->ifa_name) continue;
    if (at->ifa_addr->sa_family != AF_INET && at->ifa_addr->sa_family != AF_INET6) continue;
    hosts.push_back(Number(*at->ifa_addr));
  }
  if (hosts.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("network device ", device, " has no address"));
  }
  PutIpv4First(&hosts);
  return hosts;
}

}  // namespace

bool IsLoopbackHost(absl::string_view host) {
  const std::string text(host);
  in_addr four;
  in6_addr six;
  if (inet_pton(AF_INET, text.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, text.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six) != 0;
  return host == "localhost";
}

std::string HostInAddress(absl::string_view host) {
  const bool bare = host.find(':') != absl::string_view::npos && host[0] != '[';
  return bare ? absl::StrCat("[", host, "]") : std::string(host);
}

std::string TcpAddress::ToString() const {
  return absl::StrCat("tcp://", HostInAddress(host), ":", port);
}

std::pair<std::string, std::string> SplitEndpointNumber(absl::string_view address) {
  const size_t mark = address.rfind('#');
  if (mark != absl::string_view::npos && address.size() - mark == kEndpointNumberDigits + 1 &&
      std::all_of(address.begin() + mark + 1, address.end(), absl::ascii_isxdigit)) {
    return {std::string(address.substr(0, mark)), std::string(address.substr(mark + 1))};
  }
  return {std::string(address), ""};
}

TcpAddress SplitTcpAddress(absl::string_view whole) {
  const std::string without = SplitEndpointNumber(whole).first;
  absl::string_view address = without;
  if (!absl::ConsumePrefix(&address, "tcp://")) return {};
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return {};
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return {std::string(host), std::string(address.substr(colon + 1))};
}

absl::StatusOr<std::string> ResolveToBind(const std::string& address) {
  TcpAddress at = SplitTcpAddress(address);
  if (!at.valid() || at.AllHosts()) return address;
  const bool device = if_nametoindex(at.host.c_str()) != 0;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                          device ? AddressesOfDevice(at.host) : AddressesOf(at.host));
  at.host = hosts[0];
  return at.ToString();
}

std::vector<std::string> ResolveToConnect(const std::string& address) {
  TcpAddress at = SplitTcpAddress(address);
  if (!at.valid()) return {address};
  const absl::StatusOr<std::vector<std::string>> hosts = AddressesOf(at.host);
  if (!hosts.ok()) return {address};
  std::vector<std::string> all;
  for (const std::string& host : *hosts) {
    at.host = host;
    all.push_back(at.ToString());
  }
  return all;
}

}  // namespace tandem::transport
