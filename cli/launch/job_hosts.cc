#include "cli/launch/job_hosts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::cli {

absl::StatusOr<JobHosts> JobHosts::Make(const Options& options) {
  const int apart = options.colocate_servers ? 0 : options.servers;
  TANDEM_ASSIGN_OR_RETURN(VirtualHosts hosts, VirtualHosts::Make(1 + options.workers + apart,
                                                                 options.bytes_per_second));
  return JobHosts(options, std::move(hosts));
}

JobHosts::JobHosts(const Options& options, VirtualHosts hosts)
    : options_(options), hosts_(std::move(hosts)), roles_(static_cast<size_t>(hosts_.hosts())) {
  roles_[0] = {"scheduler"};
  for (int w = 0; w < options_.workers; ++w) {
    roles_[static_cast<size_t>(1 + w)] = {absl::StrCat("worker ", w)};
  }
  const int first = options_.colocate_servers ? 1 : 1 + options_.workers;
  for (int s = 0; s < options_.servers; ++s) {
    roles_[static_cast<size_t>(first + s)].push_back(absl::StrCat("server ", s));
  }
}

int JobHosts::HostOf(const std::string& role) const {
  for (size_t host = 0; host < roles_.size(); ++host) {
    const auto& here = roles_[host];
    if (std::find(here.begin(), here.end(), role) != here.end()) return static_cast<int>(host);
  }
  TANDEM_CHECK(false);
  return 0;
}

std::vector<std::string> JobHosts::FlagsOf(const std::string& role) const {
  return {"--bind", absl::StrCat("tcp://", VirtualHosts::Address(HostOf(role)), ":*")};
}

int JobHosts::NetworkOf(const std::string& role) const { return hosts_.space(HostOf(role)); }

nlohmann::json JobHosts::Summary() const {
  nlohmann::json hosts = nlohmann::json::array();
  const auto traffic = hosts_.ReadTraffic();
  for (size_t host = 0; traffic.ok() && host < roles_.size(); ++host) {
    hosts.push_back({{"host", absl::StrJoin(roles_[host], ", ")},
                     {"sent_bytes", (*traffic)[host].sent},
                     {"received_bytes", (*traffic)[host].received}});
  }
  return {{"bytes_per_second", options_.bytes_per_second}, {"hosts", hosts}};
}

}  // namespace tandem::cli
