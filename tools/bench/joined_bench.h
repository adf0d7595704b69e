// A collective benchmark whose ranks are started one by one, on one machine or several:
//
//   tandem bench allreduce --ranks 2 --rank 0 --listen 10.0.0.1:7000
//   tandem bench allreduce --ranks 2 --rank 1 --join 10.0.0.1:7000
//
// The ranks meet at the coordinator of the process that listens, and are connected by links as the
// workers of a job are. Then they run the benchmark of collective_bench.h; rank 0 prints. All ranks
// must be given the same options.
#ifndef TANDEM_TOOLS_BENCH_JOINED_BENCH_H_
#define TANDEM_TOOLS_BENCH_JOINED_BENCH_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "tools/bench/collective_bench.h"

namespace tandem::bench {

struct JoinedBenchOptions {
  std::string listen;                   // HOST:PORT where the ranks meet; port 0: any free one
  std::string join;                     // or HOST:PORT of the process that listens
  int rank = -1;                        // -1: any free one
  double startup_timeout_seconds = 60;  // limit for all ranks to come
};

// `options.link`: "shm", "rdma", "tcp" or "zmq", or "auto" to choose as a job does. The listening
// process first prints "coordinator at HOST:PORT". INVALID_ARGUMENT: bad options, before anything
// is started. DEADLINE_EXCEEDED: names the ranks that did not come. FAILED_PRECONDITION: names the
// options that differ from those of the others. UNAVAILABLE: a rank was lost, or no process
// listens.
absl::Status RunJoinedCollectiveBench(const CollectiveBenchOptions& options,
                                      const JoinedBenchOptions& joined, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_JOINED_BENCH_H_
