// What the chooser thinks, and what that is worth: parts of `tandem bench allreduce` and the like.
#ifndef TANDEM_BENCH_CHOOSER_BENCH_H_
#define TANDEM_BENCH_CHOOSER_BENCH_H_

#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "bench/collective_bench.h"
#include "collectives/group.h"
#include "collectives/tuning/chooser.h"

namespace tandem::bench {

// Fills `rules`, which the group's chooser looks at, as the options say; gives the costs they were
// made from, if any. All ranks call it.
absl::StatusOr<absl::optional<collectives::Calibration>> PrepareChooser(
    const CollectiveBenchOptions& options, collectives::Group& group,
    collectives::ChooserRules* rules);

// Prints the costs and, for each size, the predicted time of every algorithm and the choice.
absl::Status ExplainChoices(const CollectiveBenchOptions& options, collectives::Group& group,
                            const collectives::Calibration& calibration,
                            const collectives::ChooserRules& rules, std::ostream& out);

// For each size: all algorithms in turns, `repetitions` times (21 at least, for figures that are
// to be believed), and how much longer the chosen one takes than the fastest, by medians. Then the
// median of that over the sizes, and the worst among those whose best two differ by more than 10 %.
// What noise could explain is no regret.
absl::Status MeasureRegret(const CollectiveBenchOptions& options, collectives::Group& group,
                           std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_CHOOSER_BENCH_H_
