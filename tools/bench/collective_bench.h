// The collectives benchmark:
//
//   allreduce allgather reduce_scatter broadcast reduce alltoall gather scatter barrier
//              one collective over a sweep of sizes, in and out of place
//   sendrecv   every rank sends to the next one and receives from the one before
//
// The benchmark follows nccl-tests and its conventions of size and bus bandwidth. The size of
// allgather, reduce_scatter, alltoall, gather and scatter is the size of the blocks of all ranks
// together. algbw = size / time. busbw = algbw times the bytes that the busiest link must carry per
// byte of size: 2(p-1)/p for allreduce, (p-1)/p for the five named above, 1 for the others.
//
// Ranks are processes that this one forks (rank_processes.h), or processes that were started by
// hand and meet at a coordinator (joined_bench.h). The operations of a line run back to back. A
// repetition has as many operations as fill its share of `seconds`, and begins with a barrier. The
// time of an operation is that of its slowest rank.
//
// Inputs are exact: small integers times a power of two, with a different pattern on each rank.
// Results are compared with the exact result before and after the measured operations. `wrong` is
// the number of elements that differ, over all ranks.
#ifndef TANDEM_TOOLS_BENCH_COLLECTIVE_BENCH_H_
#define TANDEM_TOOLS_BENCH_COLLECTIVE_BENCH_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/group.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/types.h"
#include "tools/bench/rank_processes.h"

namespace tandem::bench {

struct CollectiveBenchOptions {
  collectives::Primitive primitive = collectives::Primitive::kAllReduce;  // kPointToPoint: sendrecv
  std::string link = "shm";                                               // see rank_processes.h
  int ranks = 2;
  int64_t min_bytes = 4, max_bytes = 64 << 20;
  int64_t factor = 4;
  std::vector<int64_t> sizes;  // instead of min, max and factor
  std::string type = "f32", op = "sum";
  int root = 0;
  std::vector<std::string> algorithms = {"auto"};  // "auto": the group's choice; "all"
  int64_t segment_bytes = -1;                      // -1: the group's choice
  bool in_place = true;                            // also measure in place
  int warmup = 2;                                  // operations, at least 1
  int repetitions = 5;
  int max_operations = 10'000;                 // in a repetition
  double seconds = 0.2;                        // approximate time for a line
  std::string json;                            // file to write, one object per line; empty: none
  absl::Duration deadline = absl::Minutes(1);  // limit for one operation

  // How "auto" chooses: by the group's defaults, by a calibration, by a calibration file, or by
  // rules (chooser.h), which take precedence.
  bool calibrate = false;
  std::string calibration;  // file to read, or with `calibrate` to write
  std::string rules;
  bool explain = false;  // print predicted times, measure nothing
};

// One line of the table. Times are those of the slowest rank.
struct CollectiveBenchLine {
  collectives::AlgorithmChoice choice;
  bool in_place = false;
  int64_t bytes = 0, count = 0;
  int64_t operations = 0;  // number measured
  double mean = 0;         // seconds of an operation, back to back: median of repetitions
  double least = 0, p50 = 0, p99 = 0, most = 0;  // seconds, of single operations
  int64_t wrong = 0;
  double algbw() const { return mean > 0 ? static_cast<double>(bytes) / mean : 0; }
};

// Prints the machine, the settings, then one line for each size, algorithm and placement:
//
//   size count algorithm segment place mean_us p50_us p99_us algbw busbw wrong
//
// Bandwidths are in GB/s and are computed from the mean. INVALID_ARGUMENT: bad options. DATA_LOSS:
// wrong elements. Any other error ended a collective.
absl::Status RunCollectiveBench(const CollectiveBenchOptions& options, std::ostream& out);

// The part of one rank; rank 0 prints. For ranks that are started one by one. `options` and `out`
// must outlive the result.
RankBody CollectiveBenchBody(const CollectiveBenchOptions& options, std::ostream& out);

// Measures one line. All ranks of the group must call it; all get the same result.
absl::StatusOr<CollectiveBenchLine> MeasureCollective(const CollectiveBenchOptions& options,
                                                      collectives::Group& group, int64_t bytes,
                                                      const collectives::AlgorithmChoice& choice,
                                                      bool in_place);

absl::Status CheckCollectiveBench(const CollectiveBenchOptions& options);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_COLLECTIVE_BENCH_H_
