#include "worker/join_group.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "collectives/connect_links.h"
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

}  // namespace

absl::StatusOr<WorkerGroup> JoinWorkers(const JobPlan& plan, int rank,
                                        const std::string& coordinator, DenseParameters& dense) {
  WorkerGroup out;
  GroupOptions options = OptionsOf(plan);
  std::vector<std::unique_ptr<Link>> links(1);
  if (plan.workers() > 1) {
    const absl::Time deadline = absl::Now() + absl::Seconds(plan.job.limits().start_seconds());
    TANDEM_ASSIGN_OR_RETURN(const std::string host, LocalHostTowards(coordinator));
    TANDEM_ASSIGN_OR_RETURN(LinkPorts ports, LinkPorts::Open(host));
    JoinOptions join;
    join.coordinator = coordinator;
    join.group = "workers";
    join.rank = rank;
    join.ranks = plan.workers();
    join.member = ports.member();
    TANDEM_ASSIGN_OR_RETURN(out.client, CoordinatorClient::Join(join, deadline));
    const Membership membership = out.client->membership();
    ConnectOptions connect;
    connect.links = LinksOf(plan);
    connect.watch = out.client.get();
    TANDEM_ASSIGN_OR_RETURN(links, ConnectLinks(membership, ports, connect, deadline));
    options.host_of_rank = membership.HostOfRank();
    if (connect.links == LinkChoice::kTcp) {
      options.chooser = DefaultChooser(plan.workers(), /*tcp=*/true);
    }
  }
  auto watch = std::make_unique<AbortableWatch>(out.client.get());
  options.watch = watch.get();
  auto group = std::make_unique<Group>(rank, std::move(links), std::move(options));
  out.synchroniser = std::make_unique<DenseSynchroniser>(std::move(group), std::move(watch), dense,
                                                         DenseSynchroniser::OptionsOf(plan));
  return out;
}

}  // namespace tandem
