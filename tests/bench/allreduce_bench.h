// How fast all-reduce is over a transport: p ranks as threads of one process, sizes swept, every
// element of every result compared with the exact sum.
#ifndef TANDEM_TESTS_BENCH_ALLREDUCE_BENCH_H_
#define TANDEM_TESTS_BENCH_ALLREDUCE_BENCH_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/legacy/schedule.h"

namespace tandem {

struct AllReduceBenchOptions {
  std::string transport = "inproc";  // "inproc", or "zmq" (TCP over loopback)
  int ranks = 4;
  std::vector<AllReduceAlgorithm> algorithms = {AllReduceAlgorithm::kRing,
                                                AllReduceAlgorithm::kDirect};
  int64_t min_bytes = 4 << 10;  // sizes grow by four from here
  int64_t max_bytes = 64 << 20;
  int warmup = 3;  // repetitions before the measured ones; their results are checked too
  int repetitions = 30;
  uint64_t seed = 1;
  absl::Duration deadline = absl::Seconds(60);  // of one all-reduce
};

// Prints the knobs, then one line an algorithm and size:
//   algorithm bytes samples min_us p50_us p99_us max_us algbw_GB/s busbw_GB/s wrong
// A sample is the time of the slowest rank; bandwidths are those of the median; wrong counts
// elements over all ranks and repetitions. INVALID_ARGUMENT: bad options; DATA_LOSS: wrong
// elements; or what ended an all-reduce.
absl::Status RunAllReduceBench(const AllReduceBenchOptions& options, std::ostream& out);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_ALLREDUCE_BENCH_H_
