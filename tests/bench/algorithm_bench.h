// For authors of algorithms of collectives: drawings of schedules, and the regret of the chooser.
// algorithm_bench_main.cc is the program.
#ifndef TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_
#define TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_

#include <ostream>

#include "absl/status/status.h"
#include "tools/bench/collective_bench.h"

namespace tandem {

// Prints the schedules of the smallest size, for each algorithm. Errors are those of
// bench::CheckCollectiveBench.
absl::Status DrawAlgorithms(const bench::CollectiveBenchOptions& options, std::ostream& out);

// Measures the links, unless options.calibration names a file, and then the regret: how much longer
// the chosen algorithm takes than the fastest one. For each size all algorithms take turns,
// `repetitions` times (at least 21 for reliable figures), and medians are compared. Then prints the
// median of the regret over the sizes, and the largest one among sizes whose best two algorithms
// differ by more than 10 %. A difference that noise can explain is no regret.
absl::Status MeasureRegret(const bench::CollectiveBenchOptions& options, std::ostream& out);

}  // namespace tandem

#endif  // TANDEM_TESTS_BENCH_ALGORITHM_BENCH_H_
