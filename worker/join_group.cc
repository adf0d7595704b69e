#include "worker/join_group.h"

#include <algorithm>
#include <map>
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
absl::StatusOr<std::vector<std::unique_ptr<Link>>> Meet(const JobPlan& plan, const char* group,
                                                        int rank, int ranks,
                                                        const std::string& coordinator,
                                                        std::unique_ptr<CoordinatorClient>* client,
                                                        GroupOptions* options) {
  const absl::Time deadline = absl::Now() + absl::Seconds(plan.job.limits().start_seconds());
  TANDEM_ASSIGN_OR_RETURN(const std::string host, LocalHostTowards(coordinator));
  TANDEM_ASSIGN_OR_RETURN(LinkPorts ports, LinkPorts::Open(host));
  JoinOptions join;
  join.coordinator = coordinator;
  join.group = group;
  join.rank = rank;
  join.ranks = ranks;
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

// The hosts' first ranks, in the order of their hosts' numbers.
std::vector<int> LeadersOf(const std::vector<int>& host_of_rank) {
  std::map<int, int> first;
  for (size_t r = 0; r < host_of_rank.size(); ++r) {
    first.emplace(host_of_rank[r], static_cast<int>(r));
  }
  std::vector<int> leaders;
  for (const auto& [host, rank] : first) leaders.push_back(rank);
  return leaders;
}

absl::StatusOr<std::unique_ptr<DeviceSum>> JoinDevices(const JobPlan& plan, Group& group,
                                                       const std::vector<int>& host_of_rank,
                                                       const std::string& coordinator,
                                                       GroupWatch* watch, WorkerGroup* out) {
  DeviceSumOptions options;
  options.host_of_rank = host_of_rank;
  options.watch = watch;
  options.deadline = absl::Seconds(plan.job.limits().stall_limit_seconds());
  const std::vector<int> leaders = LeadersOf(host_of_rank);
  const auto own = std::find(leaders.begin(), leaders.end(), group.rank());
  if (leaders.size() > 1 && own != leaders.end()) {
    GroupOptions of_leaders = OptionsOf(plan);
    const int number = static_cast<int>(own - leaders.begin());
    TANDEM_ASSIGN_OR_RETURN(
        auto links, Meet(plan, "leaders", number, static_cast<int>(leaders.size()), coordinator,
                         &out->leaders_client, &of_leaders));
    of_leaders.watch = out->leaders_client.get();
    options.leaders = std::make_unique<Group>(number, std::move(links), std::move(of_leaders));
  }
  return DeviceSum::New(group, std::move(options));
}

}  // namespace

absl::StatusOr<WorkerGroup> JoinWorkers(const JobPlan& plan, int rank,
                                        const std::string& coordinator,
                                        const std::string& dump_folder, DenseParameters& dense) {
  WorkerGroup out;
  GroupOptions options = OptionsOf(plan);
  std::vector<std::unique_ptr<Link>> links(1);
  if (plan.workers() > 1) {
    TANDEM_ASSIGN_OR_RETURN(
        links, Meet(plan, kWorkersGroup, rank, plan.workers(), coordinator, &out.client, &options));
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
  std::unique_ptr<DeviceSum> device_sum;
  if (synchronise.on_device) {
    TANDEM_ASSIGN_OR_RETURN(device_sum,
                            JoinDevices(plan, *group, hosts, coordinator, watch.get(), &out));
  }
  out.synchroniser =
      std::make_unique<DenseSynchroniser>(std::move(group), std::move(watch), dense, synchronise);
  out.synchroniser->SumOnDevice(std::move(device_sum));
  return out;
}

}  // namespace tandem
