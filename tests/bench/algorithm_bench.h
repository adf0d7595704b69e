// DrawAlgorithms and MeasureRegret help authors of collective algorithms: they draw schedules, and
// compare the choice with the fastest algorithm. algorithm_bench_main.cc is the program.
#ifndef TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_
#define TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/bench/collective_bench.h"

namespace tandem {

// Prints the schedules of the smallest size, for each algorithm. Errors: as of
// bench::CheckCollectiveBench.
absl::Status DrawAlgorithms(const bench::CollectiveBenchOptions& options, std::ostream& out);

// Measures the regret: how much longer the chosen algorithm takes than the fastest one. First
// measures the links, unless options.calibration names a file. For each size all algorithms take
// turns, `repetitions` times (at least 21 for reliable figures), and the medians count. Prints the
// median of the regret over the sizes, and the largest regret of the sizes whose best two
// algorithms differ by more than 10 %. Noise can explain smaller differences.
absl::Status MeasureRegret(const bench::CollectiveBenchOptions& options, std::ostream& out);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_
