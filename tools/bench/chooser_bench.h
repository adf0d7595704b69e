// Measures the chooser of algorithms: its predictions and what its choices cost. Used by `tandem
// bench allreduce` and the other collectives.
#ifndef TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_
#define TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_

#include <ostream>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "collectives/group.h"
#include "collectives/tuning/chooser.h"
#include "tools/bench/collective_bench.h"

namespace tandem::bench {

// Fills `rules`, from which the group's chooser takes its choices, as the options say. Returns the
// costs from which they were made, if any. All ranks call it.
absl::StatusOr<absl::optional<collectives::Calibration>> PrepareChooser(
    const CollectiveBenchOptions& options, collectives::Group& group,
    collectives::ChooserRules* rules);

// Prints the costs, and for each size the predicted time of every algorithm and the choice.
absl::Status ExplainChoices(const CollectiveBenchOptions& options, collectives::Group& group,
                            const collectives::Calibration& calibration,
                            const collectives::ChooserRules& rules, std::ostream& out);

// Measures regret: how much longer the chosen algorithm takes than the fastest one. For each size
// all algorithms take turns, `repetitions` times (at least 21 for reliable figures), and medians
// are compared. Then prints the median of the regret over the sizes, and the largest one among
// sizes whose best two algorithms differ by more than 10 %. A difference that noise can explain is
// no regret.
absl::Status MeasureRegret(const CollectiveBenchOptions& options, collectives::Group& group,
                           std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_
