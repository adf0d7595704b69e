// `tandem bench read`: how fast a worker reads its training rows, from the files to batches, and
// what processor time that takes. Nothing else runs: no server, no model.
#ifndef TANDEM_TOOLS_BENCH_READ_BENCH_H_
#define TANDEM_TOOLS_BENCH_READ_BENCH_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem::bench {

struct ReadBenchOptions {
  std::string job;
  std::vector<std::string> set;
  int repetitions = 5;  // epochs
};

// Reads the rows of worker 0 several times and prints a line for each, then the median. A hash of
// the batches shows whether two ways of reading give the same. INVALID_ARGUMENT: job or data.
absl::Status RunReadBench(const ReadBenchOptions& options, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_READ_BENCH_H_
