// WithChooser makes the chooser of algorithms for `tandem bench allreduce` and the other
// collectives. ExplainChoices prints its predictions.
#ifndef TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_
#define TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_

#include <functional>
#include <ostream>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "collectives/group.h"
#include "collectives/tuning/chooser.h"
#include "tools/bench/collective_bench.h"

namespace tandem::bench {

// The code of a rank in a group whose chooser takes its choices from `rules`. `costs`: the
// costs behind the rules, if any.
using ChooserBody = std::function<absl::Status(
    collectives::Group& group, const absl::optional<collectives::Calibration>& costs,
    const collectives::ChooserRules& rules)>;
// Makes the group with a chooser as the options say. `options` must outlive the result.
RankBody WithChooser(const CollectiveBenchOptions& options, ChooserBody body);

// Prints the costs, and for each size the predicted time of every algorithm and the choice.
absl::Status ExplainChoices(const CollectiveBenchOptions& options, collectives::Group& group,
                            const collectives::Calibration& calibration,
                            const collectives::ChooserRules& rules, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_CHOOSER_BENCH_H_
