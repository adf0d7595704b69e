#include "tools/bench/joined_bench.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/connect_links.h"
#include "collectives/rendezvous/coordinator.h"
#include "collectives/rendezvous/coordinator_client.h"

namespace tandem::bench {
namespace {

absl::Status CheckJoined(const CollectiveBenchOptions& options, const JoinedBenchOptions& joined) {
  TANDEM_RETURN_IF_ERROR(CheckCollectiveBench(options));
  if (joined.listen.empty() == joined.join.empty()) {
    return absl::InvalidArgumentError("want exactly one of --listen and --join");
  }
  if (!collectives::LinkChoiceOf(options.link).ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "link '", options.link, "': ranks that join want shm, rdma, tcp, zmq or auto"));
  }
  if (joined.rank < -1 || joined.rank >= options.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", joined.rank, " of ", options.ranks,
                     " ranks, want -1 or a number below their count"));
  }
  if (!(joined.startup_timeout_seconds > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("start-seconds ", joined.startup_timeout_seconds, ", want more than 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunJoinedCollectiveBench(const CollectiveBenchOptions& options,
                                      const JoinedBenchOptions& joined, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckJoined(options, joined));
  const absl::Time deadline = MonotonicNow() + absl::Seconds(joined.startup_timeout_seconds);
  std::unique_ptr<collectives::Coordinator> coordinator;
  collectives::JoinOptions join;
  join.coordinator = joined.join;
  if (!joined.listen.empty()) {
    collectives::CoordinatorOptions listen;
    listen.address = joined.listen;
    listen.own_rank = joined.rank;
    TANDEM_ASSIGN_OR_RETURN(coordinator, collectives::Coordinator::Start(std::move(listen)));
    join.coordinator = coordinator->address();
    out << "coordinator at " << join.coordinator << std::endl;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string host, collectives::LocalHostTowards(join.coordinator));
  TANDEM_ASSIGN_OR_RETURN(const collectives::LinkChoice choice,
                          collectives::LinkChoiceOf(options.link));
  TANDEM_ASSIGN_OR_RETURN(collectives::LinkPorts ports, collectives::LinkPorts::Open(host, choice));
  join.group = "bench";
  join.rank = joined.rank;
  join.ranks = options.ranks;
  join.member = ports.member();
  TANDEM_ASSIGN_OR_RETURN(const auto client, collectives::CoordinatorClient::Join(join, deadline));
  const collectives::GroupMembership membership = client->membership();
  collectives::ConnectOptions connect;
  connect.links = choice;
  connect.shm_capacity = static_cast<size_t>(options.ring_bytes);
  connect.watch = client.get();
  TANDEM_ASSIGN_OR_RETURN(auto links,
                          collectives::ConnectLinks(membership, ports, connect, deadline));
  collectives::GroupOptions group;
  group.host_of_rank = membership.HostOfRank();
  group.watch = client.get();
  return RunCollectiveBenchRank(options, membership.rank, std::move(links), group, out);
}

}  // namespace tandem::bench
