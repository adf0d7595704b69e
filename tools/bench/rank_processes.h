// Runs the ranks of a benchmark: the calling process is rank 0 and forks the others. Their links
// are made before the fork, so ranks need not search for each other (over RDMA and ZeroMQ they tell
// each other their addresses).
//
// No child outlives the caller: the kernel kills it if the caller dies for any reason, and RunRanks
// returns only when all children have ended. The calling process must have only one thread, because
// fork() copies no other thread. With "memory" ranks are threads, and this does not apply.
#ifndef TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_
#define TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/links/link.h"
#include "collectives/links/shm_link.h"

namespace tandem::bench {

// The code of a rank. links[r] leads to rank r; null for the rank itself.
using RankBody =
    std::function<absl::Status(int rank, std::vector<std::unique_ptr<collectives::Link>> links)>;

struct RankOptions {
  // "shm", "tcp", "zmq" (loopback), "rdma" (one device) or "memory" (threads of this process).
  std::string link = "shm";
  int ranks = 2;
  size_t ring_bytes = collectives::ShmLink::kDefaultCapacity;  // of each shared-memory ring
};

// Runs `body` on every rank. Returns the error of the lowest rank whose error is more than the loss
// of another rank, or OK. INVALID_ARGUMENT: an unknown link, ranks not in [1, 256], or an
// impossible ring size.
absl::Status RunRanks(const RankOptions& options, const RankBody& body);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_RANK_PROCESSES_H_
