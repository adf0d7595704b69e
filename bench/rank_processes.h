// Ranks for a benchmark: the calling process is rank 0, and forks the others. They are joined by
// links that were made before, so that nobody has to find anybody (over RDMA and ZeroMQ they tell
// each other their addresses).
//
// No child outlives the caller: the kernel kills it if the caller dies, however that happens, and
// RunRanks returns only when all have ended. The calling process must have one thread (but for
// "memory", where ranks are threads).
#ifndef TANDEM_BENCH_RANK_PROCESSES_H_
#define TANDEM_BENCH_RANK_PROCESSES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "collectives/links/link.h"
#include "collectives/links/shm_link.h"

namespace tandem::bench {

// What a rank does. links[r] leads to rank r, null at its own.
using RankBody =
    std::function<absl::Status(int rank, std::vector<std::unique_ptr<collectives::Link>> links)>;

struct RankOptions {
  // "shm", "tcp", "zmq" (loopback), "rdma" (one device) or "memory" (threads of this process).
  std::string link = "shm";
  int ranks = 2;
  size_t ring_bytes = collectives::ShmLink::kDefaultCapacity;  // of each ring of shared memory
};

// Runs `body` on every rank. The error of the lowest rank that did not merely lose another, or OK.
// INVALID_ARGUMENT: no such link, ranks not in [1, 256], or no possible size of a ring.
absl::Status RunRanks(const RankOptions& options, const RankBody& body);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_RANK_PROCESSES_H_
