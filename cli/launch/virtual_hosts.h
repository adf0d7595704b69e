// Simulates several hosts on this machine, with slow links between them. Each host is a network
// namespace with one Ethernet device. All devices are connected to a switch (a bridge in one
// more namespace). A token bucket (tbf, at both ends of each wire) limits the bytes a second in
// each direction.
//
// Processes on different hosts can connect only over the network, because abstract sockets, which
// lead to shared memory, do not reach beyond a namespace. All hosts share the files, processors and
// memory of the machine.
//
// Namespaces have no names. The kernel removes a namespace with this object and the last process in
// it, so nothing is left behind, even if the program is killed.
//
// Needs Linux, root, and the programs ip and tc (Debian's iproute2).
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_VIRTUAL_HOSTS_H_
#define TANDEM_CLI_LAUNCH_VIRTUAL_HOSTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"

namespace tandem::cli {

inline constexpr int kMaxVirtualHosts = 1000;
// Least bytes a second of a link. The scheduler declares a process dead after eight seconds without
// a heartbeat (scheduler/state/times.h). A connection can hold 4 MB in front of a heartbeat, and
// a link must carry them in less time.
inline constexpr double kMinLinkBytes = 5e5;
// The same for so many hosts: the scheduler's link must carry the reports of all processes, too.
double MinLinkBytes(int hosts);
inline constexpr double kMaxLinkBytes = 1e11;

class VirtualHosts {
 public:
  // FAILED_PRECONDITION: the machine lacks something; the message says what. INVALID_ARGUMENT: a
  // rate outside of the limits above, or more hosts than kMaxVirtualHosts.
  static absl::StatusOr<VirtualHosts> Make(int hosts, double bytes_per_second);
  // Checks whether Make would succeed, by creating and removing a host.
  static absl::Status Check(int hosts, double bytes_per_second);

  int hosts() const { return static_cast<int>(spaces_.size()); }
  // The host's address in the network of all hosts, such as "10.77.0.1".
  static std::string Address(int host);
  // The host's namespace, for setns(2). The descriptor is open as long as this object exists.
  int space(int host) const { return spaces_[static_cast<size_t>(host)].get(); }

  // Bytes that each host has sent and received, with all headers, as the switch counts them.
  // UNAVAILABLE: the counters cannot be read.
  struct Traffic {
    int64_t sent = 0, received = 0;
  };
  absl::StatusOr<std::vector<Traffic>> ReadTraffic() const;

 private:
  VirtualHosts() = default;
  absl::Status MakeSwitch() const;
  absl::Status MakeHost(int host, const std::string& limit) const;

  OwnedFd switch_;
  std::vector<OwnedFd> spaces_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_VIRTUAL_HOSTS_H_
