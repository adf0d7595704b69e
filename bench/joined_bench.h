// A collective benchmark whose ranks somebody starts one by one, on one machine or several:
//
//   tandem bench allreduce --ranks 2 --rank 0 --listen 10.0.0.1:7000
//   tandem bench allreduce --ranks 2 --rank 1 --join 10.0.0.1:7000
//
// They meet at the coordinator of whoever listens, are joined by links as the workers of a job are,
// and then do what collective_bench.h says; rank 0 prints. All must be given the same options.
#ifndef TANDEM_BENCH_JOINED_BENCH_H_
#define TANDEM_BENCH_JOINED_BENCH_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "bench/collective_bench.h"

namespace tandem::bench {

struct JoinedBenchOptions {
  std::string listen;  // HOST:PORT where this process lets the others meet; port 0: a free one
  std::string join;    // or HOST:PORT of the process that listens
  int rank = -1;       // -1: any free one
  double start_seconds = 60;  // by then all must be there
};

// `options.link`: "shm", "rdma", "tcp" or "zmq", or "auto": as a job chooses. Who listens
// prints "coordinator at HOST:PORT" first. INVALID_ARGUMENT: bad options, before anything is
// started. DEADLINE_EXCEEDED names the ranks that did not come, FAILED_PRECONDITION what does not
// fit theirs, UNAVAILABLE a rank that was lost, or that nobody listens.
absl::Status RunJoinedCollectiveBench(const CollectiveBenchOptions& options,
                                      const JoinedBenchOptions& joined, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_JOINED_BENCH_H_
