// Runs the ranks of a benchmark. The ranks meet at a coordinator of rank 0, and are connected by
// links as the workers of a job are. Either the calling process is rank 0 and forks the others
// (RunRanks), or somebody starts each rank (RunRank, joined_bench.h).
//
// No forked rank outlives the caller: the kernel kills it if the caller dies for any reason, and
// RunRanks returns only when all of them have ended. The process that calls RunRanks must have only
// one thread, because fork() copies no other thread.
#ifndef TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_
#define TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/group.h"
#include "collectives/links/link.h"

namespace tandem::bench {

// The code of a rank. links[r] leads to rank r; null for the rank itself. `options` has the hosts
// of the ranks, and who watches for lost ranks.
using RankBody =
    std::function<absl::Status(int rank, std::vector<std::unique_ptr<collectives::Link>> links,
                               const collectives::GroupOptions& options)>;

struct RankOptions {
  std::string link = "shm";  // "shm", "tcp", "rdma", "zmq", or "auto" to choose as a job does
  int ranks = 2;
};

// Meets the other ranks at `coordinator` (host:port) and runs `body`. `rank` -1: any free rank.
// DEADLINE_EXCEEDED names the ranks that did not come. FAILED_PRECONDITION: the coordinator refuses
// the rank. UNAVAILABLE: a rank was lost, or no coordinator listens.
absl::Status RunRank(const RankOptions& options, const std::string& coordinator, int rank,
                     absl::Time deadline, const RankBody& body);

// Runs `body` on every rank. Returns the error of the lowest rank whose error is more than the loss
// of another rank, or OK. INVALID_ARGUMENT: ranks not in [1, 256].
absl::Status RunRanks(const RankOptions& options, const RankBody& body);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_
