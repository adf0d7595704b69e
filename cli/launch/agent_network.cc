#include "cli/launch/agent_network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "node/network_check.h"
#include "transport/tcp_address.h"

namespace tandem::cli {
namespace {

constexpr char kLoopback[] = "127.0.0.1";

std::string NumberOf(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = "";
  const int failed = getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return failed == 0 ? host : "";
}

// The own address of the route to a host. A datagram socket looks up the route and sends nothing.
std::string OwnEndOfRoute(const std::string& host) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    const OwnedFd fd(socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t size = sizeof own;
    auto* const at = reinterpret_cast<sockaddr*>(&own);
    if (!fd.valid() || connect(fd.get(), to->ai_addr, to->ai_addrlen) != 0) continue;
    if (getsockname(fd.get(), at, &size) == 0) return NumberOf(at, size);
  }
  return "";
}

using transport::IsLoopbackHost;

bool IsNumber(const std::string& host) {
  in6_addr bytes;
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &bytes) == 1;
}

// The first IPv4 address of a device that is up and is not the loopback device.
std::string FirstDeviceAddress() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, &freeifaddrs);
  for (const ifaddrs* device = first; device != nullptr; device = device->ifa_next) {
    const bool up = (device->ifa_flags & IFF_UP) != 0 && (device->ifa_flags & IFF_LOOPBACK) == 0;
    if (!up || device->ifa_addr == nullptr || device->ifa_addr->sa_family != AF_INET) continue;
    return NumberOf(device->ifa_addr, sizeof(sockaddr_in));
  }
  return "";
}

std::string AnyPortOf(const std::string& host) {
  return absl::StrCat("tcp://", transport::HostInAddress(host), ":*");
}

// A host as the processes on it must write it. The name of the host of rank 0 may lead to the
// loopback address there, where rank 0 does not listen.
std::string Reachable(const std::string& host) {
  if (host.empty() || IsLoopbackHost(host) || !IsLoopbackHost(OwnEndOfRoute(host))) return host;
  return HostAddress(host);
}

}  // namespace

std::string HostAddress(const std::string& toward) {
  if (!toward.empty()) {
    const std::string own = OwnEndOfRoute(toward);
    if (!own.empty() && (!IsLoopbackHost(own) || IsLoopbackHost(toward))) return own;
  }
  char name[256] = "";
  (void)gethostname(name, sizeof name - 1);
  std::string own = OwnEndOfRoute(name);
  if (own.empty() || IsLoopbackHost(own)) own = FirstDeviceAddress();
  return own.empty() ? kLoopback : own;
}

absl::StatusOr<RoleNetwork> NetworkOfFirstRank(const node::Launch& launch,
                                               const std::string& scheduler,
                                               const std::string& bind,
                                               const std::string& advertise, bool out_is_shared) {
  RoleNetwork network;
  network.launch = launch.id;
  network.bind = bind;
  network.advertise = advertise;
  if (bind.empty()) {
    network.bind = AnyPortOf(launch.one_host ? kLoopback : HostAddress(launch.first_host));
  }
  const transport::TcpAddress given = transport::SplitTcpAddress(scheduler);
  if (given.valid() && bind.empty()) {
    // A name may lead to the loopback address on its own host.
    const bool own =
        IsNumber(given.host) && !absl::IsInvalidArgument(node::CheckBind(scheduler, ""));
    network.bind = AnyPortOf(own ? given.host : HostAddress(given.host));
  }
  const std::string host = transport::SplitTcpAddress(network.bind).host;
  // Whether the other ranks can work out where rank 0 listens.
  const bool derived =
      !launch.id.empty() && bind.empty() && (launch.one_host || !launch.first_host.empty());
  if (given.valid()) {
    // The address that others use may be that of a translator in between: listen at its port.
    network.scheduler_bind =
        absl::StrCat("tcp://", transport::HostInAddress(host), ":", given.port);
  } else if (launch.size == 1) {
    network.scheduler_bind = network.bind;
  } else if (derived) {
    network.scheduler_bind =
        absl::StrCat("tcp://", transport::HostInAddress(host), ":", node::PortOfLaunch(launch.id));
  } else if (out_is_shared) {
    network.scheduler_bind = network.bind;
  } else {
    return absl::InvalidArgumentError(
        "the other ranks cannot find the scheduler; hint: --out on a folder that all hosts share, "
        "or --scheduler tcp://HOST_OF_RANK_0:PORT");
  }
  const absl::Status free = node::CheckBind(network.scheduler_bind, advertise);
  if (free.ok()) return network;
  if (absl::IsUnavailable(free) && !given.valid() && out_is_shared) {
    network.scheduler_bind = network.bind;
    return network;
  }
  if (!absl::IsUnavailable(free) || given.valid()) return free;
  return absl::Status(
      free.code(),
      absl::StrCat(
          "the scheduler cannot listen at the port of this launch: ", network.scheduler_bind,
          " is taken; hint: --out on a folder that all hosts share, or --scheduler "
          "tcp://HOST_OF_RANK_0:PORT with a free port"));
}

RoleNetwork NetworkOfOtherRank(const std::string& scheduler, const std::string& bind,
                               const std::string& advertise) {
  RoleNetwork network;
  network.bind = bind;
  network.advertise = advertise;
  if (bind.empty()) {
    const std::string host = transport::SplitTcpAddress(scheduler).host;
    network.bind = AnyPortOf(HostAddress(host));
  }
  return network;
}

std::vector<Candidate> Candidates(const node::Launch& launch, const std::string& scheduler,
                                  const std::string& out) {
  std::vector<Candidate> candidates;
  if (const transport::TcpAddress given = transport::SplitTcpAddress(scheduler); given.valid()) {
    const std::string host = transport::HostInAddress(Reachable(given.host));
    candidates.push_back({absl::StrCat("tcp://", host, ":", given.port), "", ""});
  }
  const auto word = [&out](const char* file) {
    const absl::StatusOr<std::string> text = ReadWholeFile(absl::StrCat(out, "/", file));
    return text.ok() ? std::string(*absl::StrSplit(*text, absl::ByAnyChar(" \n")).begin()) : "";
  };
  if (!out.empty()) {
    const std::string address = word("address"), run = word("run");
    if (!address.empty() && !run.empty()) candidates.push_back({address, run, launch.id});
  }
  if (launch.id.empty() || !scheduler.empty()) return candidates;
  const std::string host = launch.one_host ? kLoopback : Reachable(launch.first_host);
  if (!host.empty()) {
    candidates.push_back(
        {absl::StrCat("tcp://", transport::HostInAddress(host), ":", node::PortOfLaunch(launch.id)),
         "", launch.id});
  }
  return candidates;
}

}  // namespace tandem::cli
