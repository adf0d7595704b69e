// Several hosts on this machine, with slow links between them: each is a network namespace with one
// Ethernet device, all devices end at a switch (a bridge in one more namespace), and a token bucket
// (tbf, at both ends of each wire) lets so many bytes a second through each way.
//
// What runs on different hosts meets over the network alone: abstract sockets, through which processes
// of one host find each other's shared memory, do not reach beyond a namespace. Files, processors and
// memory are those of the machine.
//
// Namespaces have no names. They are there as long as this object or a process in them is, so that
// nothing is left behind, whatever ends the program.
//
// Needs Linux, root, and the programs ip and tc (Debian's iproute2).
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_VIRTUAL_HOSTS_H_
#define TANDEM_CLI_VIRTUAL_HOSTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"

namespace tandem::cli {

inline constexpr int kMostVirtualHosts = 1000;
// Of a link, bytes a second. A process of which the scheduler hears nothing for eight seconds is dead
// (scheduler/times.h): so much must go through that what waits before a beat, the 4 MB that a connection
// takes from its sender, is gone by then ...
inline constexpr double kLeastLinkBytes = 5e5;
// ... and the scheduler's link has room for all.
double LeastLinkBytes(int hosts);
inline constexpr double kMostLinkBytes = 1e11;

class VirtualHosts {
 public:
  // FAILED_PRECONDITION: what this machine lacks for it, in one line. INVALID_ARGUMENT: a rate that is not
  // within the above, or more hosts than kMostVirtualHosts.
  static absl::StatusOr<VirtualHosts> Make(int hosts, double bytes_per_second);
  // Whether Make would find what it needs; makes a host and lets go of it.
  static absl::Status Check(int hosts, double bytes_per_second);

  int hosts() const { return static_cast<int>(spaces_.size()); }
  // Its address in the network of all hosts, such as "10.77.0.1".
  static std::string Address(int host);
  // For setns(2), and open as long as this object is.
  int space(int host) const { return spaces_[static_cast<size_t>(host)].get(); }

  // What has left a host, and what has reached it, in bytes with all headers, as the switch counts
  // them. UNAVAILABLE: it does not say.
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

#endif  // TANDEM_CLI_VIRTUAL_HOSTS_H_
