#include "tools/bench/joined_bench.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/coordinator.h"
#include "node/job_token.h"
#include "tools/bench/rank_processes.h"

namespace tandem::bench {
namespace {

absl::Status CheckJoined(const CollectiveBenchOptions& options, const JoinedBenchOptions& joined) {
  TANDEM_RETURN_IF_ERROR(CheckCollectiveBench(options));
  if (joined.listen.empty() == joined.join.empty()) {
    return absl::InvalidArgumentError("expected exactly one of --listen and --join");
  }
  if (joined.rank < -1 || joined.rank >= options.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", joined.rank, " of ", options.ranks,
                     " ranks, expected -1 or a number below their count"));
  }
  if (!(joined.startup_timeout_seconds > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("start-seconds ", joined.startup_timeout_seconds, ", expected more than 0"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunJoinedCollectiveBench(const CollectiveBenchOptions& options,
                                      const JoinedBenchOptions& joined, std::ostream& out) {
  TANDEM_RETURN_IF_ERROR(CheckJoined(options, joined));
  const absl::Time deadline = MonotonicNow() + absl::Seconds(joined.startup_timeout_seconds);
  std::unique_ptr<collectives::Coordinator> coordinator;
  std::string address = joined.join;
  if (!joined.listen.empty()) {
    collectives::CoordinatorOptions listen;
    listen.address = joined.listen;
    listen.own_rank = joined.rank;
    TANDEM_ASSIGN_OR_RETURN(listen.keys, node::FindKeys(/*folder=*/""));
    TANDEM_ASSIGN_OR_RETURN(coordinator, collectives::Coordinator::Start(std::move(listen)));
    address = coordinator->address();
    out << "coordinator at " << address << std::endl;
  }
  return RunRank({options.link, options.ranks}, address, joined.rank, deadline,
                 CollectiveBenchBody(options, out));
}

}  // namespace tandem::bench
