#include "worker/join_group.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/connect_links.h"
#include "collectives/dump.h"
#include "collectives/links/tcp_socket.h"

namespace tandem {
namespace {

LinkChoice LinksOf(const JobPlan& plan) {
  switch (plan.job.dense().link()) {
    case Dense::SHM:
      return LinkChoice::kShm;
    case Dense::TCP:
      return LinkChoice::kTcp;
    default:
      return LinkChoice::kAuto;
  }
}

GroupOptions OptionsOf(const JobPlan& plan) {
  GroupOptions options;
  options.deadline = absl::Seconds(plan.job.limits().stall_limit_seconds());
  options.reproducible = plan.job.reproducible();
  return options;
}

// Meets the others and joins them. What the group is to know of them goes into `options`.
absl::StatusOr<std::vector<std::unique_ptr<Link>>> Meet(const JobPlan& plan, int rank,
                                                        const std::string& coordinator,
                                                        std::unique_ptr<CoordinatorClient>* client,
                                                        GroupOptions* options) {
  const absl::Time deadline = absl::Now() + absl::Seconds(plan.job.limits().start_seconds());
  TANDEM_ASSIGN_OR_RETURN(const std::string host, LocalHostTowards(coordinator));
  TANDEM_ASSIGN_OR_RETURN(LinkPorts ports, LinkPorts::Open(host));
  JoinOptions join;
  join.coordinator = coordinator;
  join.group = kWorkersGroup;
  join.rank = rank;
  join.ranks = plan.workers();
  join.member = ports.member();
  TANDEM_ASSIGN_OR_RETURN(*client, CoordinatorClient::Join(join, deadline));
  const Membership membership = (*client)->membership();
  ConnectOptions connect;
  connect.links = LinksOf(plan);
  connect.watch = client->get();
  options->host_of_rank = membership.HostOfRank();
  return ConnectLinks(membership, ports, connect, deadline);
}

bool OverTcp(const JobPlan& plan, const std::vector<int>& host_of_rank) {
  return LinksOf(plan) == LinkChoice::kTcp ||
         std::any_of(host_of_rank.begin(), host_of_rank.end(),
                     [&](int host) { return host != host_of_rank[0]; });
}

}  // namespace

absl::StatusOr<WorkerGroup> JoinWorkers(const JobPlan& plan, int rank,
                                        const std::string& coordinator,
                                        const std::string& dump_folder, DenseParameters& dense) {
  WorkerGroup out;
  GroupOptions options = OptionsOf(plan);
  std::vector<std::unique_ptr<Link>> links(1);
  if (plan.workers() > 1) {
    TANDEM_ASSIGN_OR_RETURN(links, Meet(plan, rank, coordinator, &out.client, &options));
  }
  const std::vector<int> hosts = options.host_of_rank;
  const auto rules = std::make_shared<ChooserRules>();
  options.chooser = ChooserFrom(rules, plan.workers(), OverTcp(plan, hosts));
  auto watch = std::make_unique<AbortableWatch>(out.client.get());
  options.watch = watch.get();
  auto group = std::make_unique<Group>(rank, std::move(links), std::move(options));
  const auto bytes = static_cast<int64_t>(dense.count() * sizeof(float));
  auto tuning = TuneGroup(plan, bytes, hosts, *group, rules.get());
  if (!tuning.ok()) {
    if (!dump_folder.empty()) (void)WriteDump(dump_folder, DumpOf(*group, kWorkersGroup));
    return tuning.status();
  }
  out.tuning = *std::move(tuning);
  DenseSynchroniser::Options synchronise = DenseSynchroniser::OptionsOf(plan);
  synchronise.bucket_bytes = out.tuning.bucket_bytes;
  synchronise.dump_folder = dump_folder;
  out.synchroniser =
      std::make_unique<DenseSynchroniser>(std::move(group), std::move(watch), dense, synchronise);
  return out;
}

}  // namespace tandem
