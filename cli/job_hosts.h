// Which process of a job is on which virtual host: the scheduler on the first one, each worker on one,
// each server on one of its own or beside the worker of its number.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_JOB_HOSTS_H_
#define TANDEM_CLI_JOB_HOSTS_H_

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/virtual_hosts.h"

namespace tandem::cli {

class JobHosts {
 public:
  struct Options {
    double bytes_per_second = 0;  // of each link, each way
    int workers = 1, servers = 0;
    bool servers_beside_workers = false;  // requires: no more servers than workers
  };
  static absl::StatusOr<JobHosts> Make(const Options& options);

  // What is added to the flags of a role ("scheduler", "worker 1", "server 0"), and the network that
  // it is started in.
  std::vector<std::string> FlagsOf(const std::string& role) const;
  int NetworkOf(const std::string& role) const;

  // What was limited and what went through, for summary.json.
  nlohmann::json Summary() const;

 private:
  JobHosts(const Options& options, VirtualHosts hosts);
  int HostOf(const std::string& role) const;

  Options options_;
  VirtualHosts hosts_;
  std::vector<std::vector<std::string>> roles_;  // by host
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_JOB_HOSTS_H_
