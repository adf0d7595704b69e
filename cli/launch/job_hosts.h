// Places the processes of a job on virtual hosts: the scheduler on the first host, each worker on
// its own host, and server i on its own host or on the host of worker i.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_JOB_HOSTS_H_
#define TANDEM_CLI_LAUNCH_JOB_HOSTS_H_

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/launch/virtual_hosts.h"

namespace tandem::cli {

class JobHosts {
 public:
  struct Options {
    double bytes_per_second = 0;  // of each link, in each direction
    int workers = 1, servers = 0;
    bool colocate_servers = false;  // requires: no more servers than workers
  };
  static absl::StatusOr<JobHosts> Make(const Options& options);

  // The additional flags of a role ("scheduler", "worker 1", "server 0"), and the network namespace
  // to start it in.
  std::vector<std::string> FlagsOf(const std::string& role) const;
  int NetworkOf(const std::string& role) const;

  // The limits and the traffic of the links, for summary.json.
  nlohmann::json Summary() const;

 private:
  JobHosts(const Options& options, VirtualHosts hosts);
  int HostOf(const std::string& role) const;

  Options options_;
  VirtualHosts hosts_;
  std::vector<std::vector<std::string>> roles_;  // by host
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_JOB_HOSTS_H_
