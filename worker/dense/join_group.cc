#include "worker/dense/join_group.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/dump.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/connect_links.h"
#include "collectives/rendezvous/coordinator_client.h"
#include "job/user_module.h"
#include "node/log.h"
#include "worker/dense/allreduce_gradients.h"
#include "worker/dense/dense_reducer.h"
#include "worker/dense/initial_values.h"
#include "worker/dense/quorum_rounds.h"
#include "worker/dense/quorum_sums.h"

namespace tandem::worker {
namespace {

collectives::LinkChoice LinksOf(const job::ResolvedJob& plan) {
  switch (plan.job.dense().link()) {
    case Dense::SHM:
      return collectives::LinkChoice::kShm;
    case Dense::TCP:
      return collectives::LinkChoice::kTcp;
    case Dense::RDMA:
      return collectives::LinkChoice::kRdma;
    case Dense::ZMQ:
      return collectives::LinkChoice::kZmq;
    default:
      return collectives::LinkChoice::kAuto;
  }
}

collectives::GroupOptions OptionsOf(const job::ResolvedJob& plan, collectives::GroupWatch* watch) {
  collectives::GroupOptions options;
  options.watch = watch;
  options.deadline = absl::Seconds(plan.job.limits().stall_timeout_seconds());
  options.reproducible = plan.job.reproducible();
  return options;
}

// Each pair of workers is listed once, by the one that connected (the higher rank). `workers`:
// worker number by rank in the group.
std::vector<Path> PathsOf(const std::vector<std::unique_ptr<collectives::Link>>& links, int rank,
                          const std::vector<int>& workers, const std::vector<std::string>& why) {
  std::vector<Path> paths;
  for (int r = 0; r < rank; ++r) {
    const absl::StatusOr<collectives::LinkChoice> choice =
        collectives::LinkChoiceOf(links[static_cast<size_t>(r)]->kind());
    if (!choice.ok()) continue;
    Path& path = paths.emplace_back();
    path.set_to(absl::StrCat("worker ", workers[static_cast<size_t>(r)]));
    path.set_purpose("dense gradients");
    path.set_way(std::string(collectives::NameOf(*choice)));
    path.set_why(why[static_cast<size_t>(r)]);
  }
  return paths;
}

// Finds the other workers at the rendezvous and connects links to them. `workers`: worker number by
// rank in the group. Adds to `options` what the group must know of the workers.
absl::StatusOr<std::vector<std::unique_ptr<collectives::Link>>> ConnectWorkers(
    const job::ResolvedJob& plan, const char* group, int rank, const std::vector<int>& workers,
    const Rendezvous& rendezvous, collectives::GroupOptions* options, std::vector<Path>* paths) {
  // A worker with its own module joins when the module and the data are ready. The user's code
  // decides how long that takes, so the longer limit applies.
  const Limits& limits = plan.job.limits();
  const double patience =
      job::HasOwnModule(plan.job.model())
          ? std::max(limits.startup_timeout_seconds(), limits.stall_timeout_seconds())
          : limits.startup_timeout_seconds();
  const absl::Time deadline = MonotonicNow() + absl::Seconds(patience);
  // The ports open before the rendezvous, because the rendezvous publishes their addresses. Links
  // are connected after the rendezvous, when all addresses are known.
  TANDEM_ASSIGN_OR_RETURN(const std::string host,
                          collectives::LocalHostTowards(rendezvous.coordinator));
  TANDEM_ASSIGN_OR_RETURN(collectives::LinkPorts ports,
                          collectives::LinkPorts::Open(host, LinksOf(plan), rendezvous.security));
  collectives::JoinOptions join;
  join.coordinator = rendezvous.coordinator;
  join.keys = rendezvous.security.keys;
  join.group = group;
  join.rank = rank;
  join.ranks = static_cast<int>(workers.size());
  join.member = ports.member();
  join.interrupted = [watch = options->watch] { return watch->Verdict(); };
  TANDEM_ASSIGN_OR_RETURN(const collectives::GroupMembership membership,
                          collectives::CoordinatorClient::Meet(join, deadline));
  collectives::ConnectOptions connect;
  connect.links = LinksOf(plan);
  connect.interrupted = join.interrupted;
  std::vector<std::string> why;
  connect.why = &why;
  connect.log = [&](absl::string_view line) {
    node::Log("worker", workers[static_cast<size_t>(rank)]).Info(line);
  };
  options->host_of_rank = membership.HostOfRank();
  TANDEM_ASSIGN_OR_RETURN(auto links,
                          collectives::ConnectLinks(membership, ports, connect, deadline));
  for (Path& path : PathsOf(links, membership.rank, workers, why))
    paths->push_back(std::move(path));
  return links;
}

// Whether a message costs system calls. All ranks must get the same answer, so a link that fell
// back to another transport does not count.
bool OverKernel(const job::ResolvedJob& plan, const std::vector<int>& host_of_rank) {
  const collectives::LinkChoice choice = LinksOf(plan);
  if (choice != collectives::LinkChoice::kAuto)
    return choice == collectives::LinkChoice::kTcp || choice == collectives::LinkChoice::kZmq;
  return std::any_of(host_of_rank.begin(), host_of_rank.end(),
                     [&](int host) { return host != host_of_rank[0]; });
}

// The first rank of each host, ordered by host number.
std::vector<int> LeadersOf(const std::vector<int>& host_of_rank) {
  std::map<int, int> first;
  for (size_t r = 0; r < host_of_rank.size(); ++r) {
    first.emplace(host_of_rank[r], static_cast<int>(r));
  }
  std::vector<int> leaders;
  for (const auto& [host, rank] : first) leaders.push_back(rank);
  return leaders;
}

absl::StatusOr<std::unique_ptr<DeviceSum>> JoinDevices(
    const job::ResolvedJob& plan, collectives::Group& group, const std::vector<int>& host_of_rank,
    const Rendezvous& rendezvous, DenseParameters& dense,
    const GroupRunner::DeviceGradient& gradient, collectives::GroupWatch* watch,
    std::vector<Path>* paths) {
  DeviceSumOptions options;
  TANDEM_ASSIGN_OR_RETURN(options.zeros, gradient(/*zero=*/true));
  options.count = dense.count();
  options.host_of_rank = host_of_rank;
  options.deadline = absl::Seconds(plan.job.limits().stall_timeout_seconds());
  const std::vector<int> leaders = LeadersOf(host_of_rank);
  const auto own = std::find(leaders.begin(), leaders.end(), group.rank());
  if (leaders.size() > 1 && own != leaders.end()) {
    collectives::GroupOptions of_leaders = OptionsOf(plan, watch);
    const int number = static_cast<int>(own - leaders.begin());
    TANDEM_ASSIGN_OR_RETURN(auto links, ConnectWorkers(plan, "leaders", number, leaders, rendezvous,
                                                       &of_leaders, paths));
    options.leaders =
        std::make_unique<collectives::Group>(number, std::move(links), std::move(of_leaders));
  }
  return DeviceSum::New(group, std::move(options), [watch](int) { return watch->Verdict(); });
}

absl::StatusOr<std::unique_ptr<DenseSteps>> NewQuorumSteps(
    const job::ResolvedJob& plan, const Rendezvous& rendezvous, AbortableWatch& watch,
    collectives::Group& group, DenseParameters& dense, GroupRunner& runner) {
  QuorumSums::Options options;
  options.leader = QuorumLeader::OptionsOf(plan);
  options.algorithm = DenseAlgorithm(plan);
  options.deadline = absl::Seconds(plan.job.limits().stall_timeout_seconds());
  TANDEM_ASSIGN_OR_RETURN(const std::string host,
                          collectives::LocalHostTowards(rendezvous.coordinator));
  TANDEM_ASSIGN_OR_RETURN(
      auto mail, OpenQuorumMail(group, host, options.deadline, watch, rendezvous.security));
  if (plan.job.dense().synchroniser() == Dense::LOCAL_SGD) {
    const QuorumRounds::Options rounds = {options, SyncReplica::OptionsOf(plan)};
    return std::make_unique<QuorumRounds>(dense, std::move(mail), runner, rounds);
  }
  TANDEM_ASSIGN_OR_RETURN(auto model,
                          DenseParameters::New(plan.job.dense().optimizer(), dense.count()));
  return std::make_unique<QuorumSums>(dense, std::move(model), std::move(mail), runner, options);
}

}  // namespace

absl::StatusOr<std::vector<VisibleDevices>> ShareDevices(const job::ResolvedJob& plan, int rank,
                                                         const Rendezvous& rendezvous,
                                                         VisibleDevices own,
                                                         AbortableWatch* watch) {
  collectives::JoinOptions join;
  join.coordinator = rendezvous.coordinator;
  join.keys = rendezvous.security.keys;
  join.group = "devices";
  join.rank = rank;
  join.ranks = plan.workers();
  join.member.devices = std::move(own);
  join.interrupted = [watch] { return watch->Verdict(); };
  const absl::Duration patience = absl::Seconds(plan.job.limits().startup_timeout_seconds());
  TANDEM_ASSIGN_OR_RETURN(collectives::GroupMembership all,
                          collectives::CoordinatorClient::Meet(join, MonotonicNow() + patience));
  std::vector<VisibleDevices> devices;
  for (collectives::GroupMember& member : all.members) {
    devices.push_back(std::move(member.devices));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<collectives::Group>> ShareModule(
    const job::ResolvedJob& plan, int rank, const Rendezvous& rendezvous, const OwnModule& module,
    absl::Span<float> values, AbortableWatch* watch) {
  collectives::GroupOptions options = OptionsOf(plan, watch);
  std::vector<int> workers(static_cast<size_t>(plan.workers()));
  std::iota(workers.begin(), workers.end(), 0);
  std::vector<Path> paths;  // not reported: no gradients travel here
  TANDEM_ASSIGN_OR_RETURN(
      auto links, ConnectWorkers(plan, "modules", rank, workers, rendezvous, &options, &paths));
  auto group = std::make_unique<collectives::Group>(rank, std::move(links), std::move(options));
  TANDEM_RETURN_IF_ERROR(ShareInitialValues(*group, module, values));
  return group;
}

absl::StatusOr<WorkerGroup> JoinWorkers(const job::ResolvedJob& plan, int rank,
                                        const Rendezvous& rendezvous,
                                        const std::string& dump_folder, const OwnModule& module,
                                        DenseParameters& dense,
                                        GroupRunner::DeviceGradient device_gradient,
                                        AbortableWatch* watch) {
  // All workers run these steps in the same order, since most steps wait for the other workers. The
  // group is made first, with a chooser whose rules are still empty. Modules are compared before
  // the tuning, because a worker with a different module must end the job early. Device sums come
  // before the tuning, because its report names them. The tuning fills in the rules, and its bucket
  // size goes into the reduction. The steps come last, because they use the runner, and the runner
  // takes over the group.
  WorkerGroup out;
  collectives::GroupOptions options = OptionsOf(plan, watch);
  std::vector<std::unique_ptr<collectives::Link>> links(1);
  if (plan.workers() > 1) {
    std::vector<int> workers(static_cast<size_t>(plan.workers()));
    std::iota(workers.begin(), workers.end(), 0);
    TANDEM_ASSIGN_OR_RETURN(links, ConnectWorkers(plan, kWorkersGroup, rank, workers, rendezvous,
                                                  &options, &out.paths));
  }
  const std::vector<int> hosts = options.host_of_rank;
  const auto rules = std::make_shared<collectives::ChooserRules>();
  options.chooser = collectives::ChooserFrom(rules, plan.workers(), OverKernel(plan, hosts));
  auto group = std::make_unique<collectives::Group>(rank, std::move(links), std::move(options));
  if (job::HasOwnModule(plan.job.model())) {
    TANDEM_RETURN_IF_ERROR(ShareInitialValues(*group, module, dense.values()));
  }
  const auto bytes = static_cast<int64_t>(dense.count() * sizeof(float));
  std::unique_ptr<DeviceSum> device_sum;
  if (device_gradient) {
    TANDEM_ASSIGN_OR_RETURN(device_sum, JoinDevices(plan, *group, hosts, rendezvous, dense,
                                                    device_gradient, watch, &out.paths));
  }
  auto tuning = TuneGroup(plan, bytes, hosts, *group, rules.get(), device_sum.get());
  if (!tuning.ok()) {
    if (!dump_folder.empty())
      (void)collectives::WriteDump(dump_folder, collectives::DumpOf(*group, kWorkersGroup));
    return tuning.status();
  }
  out.tuning = *std::move(tuning);
  collectives::Group& shared = *group;
  out.runner = std::make_unique<GroupRunner>(
      std::move(group), *watch,
      GroupRunner::Options{plan.job.dense().codec(), plan.job.seed(), dump_folder});
  if (device_sum != nullptr) {
    out.runner->SumOnDevice(std::move(device_sum), std::move(device_gradient));
  }
  if (job::SumsByQuorum(plan.job)) {
    TANDEM_ASSIGN_OR_RETURN(out.steps,
                            NewQuorumSteps(plan, rendezvous, *watch, shared, dense, *out.runner));
    return out;
  }
  const int64_t bucket = out.tuning.bucket_bytes;
  out.steps = std::make_unique<DenseReducer>(NewDenseReduction(plan, rank, bucket, dense),
                                             /*overlap=*/bucket > 0, *out.runner);
  return out;
}

}  // namespace tandem::worker
