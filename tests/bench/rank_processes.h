// Ranks for a benchmark: processes that this one forks, joined by links that were made before, so
// that nobody has to find anybody. Rank 0 is the calling process.
//
// No child outlives the caller: the kernel kills it if the caller dies, however that happens, and
// RunRanks returns only when all have ended. The calling process must have one thread (but for
// "memory", where ranks are threads).
#ifndef TANDEM_TESTS_BENCH_RANK_PROCESSES_H_
#define TANDEM_TESTS_BENCH_RANK_PROCESSES_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "collectives/link.h"

namespace tandem {

// What a rank does. links[r] leads to rank r, null at its own.
using RankBody = std::function<absl::Status(int rank, std::vector<std::unique_ptr<Link>> links)>;

// Runs `body` on every rank over "shm", "tcp" (loopback) or "memory" (threads of this process).
// The error of the lowest rank that did not merely lose another, or OK. INVALID_ARGUMENT: no such
// link, or ranks not in [1, 256].
absl::Status RunRanks(absl::string_view link, int ranks, const RankBody& body);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_RANK_PROCESSES_H_
