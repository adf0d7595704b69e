// Values that the programs of all workers report together, at a barrier, and their reductions over
// the workers.
#ifndef TANDEM_SCHEDULER_OBSERVE_PROGRAM_VALUES_H_
#define TANDEM_SCHEDULER_OBSERVE_PROGRAM_VALUES_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

// INVALID_ARGUMENT: invalid names, too many of them, no reduction, or an invalid weight.
absl::Status CheckValues(const ProgramValues& values);

// INVALID_ARGUMENT: the values of two workers have other names or another reduction.
absl::Status CheckSameValues(int rank, const ProgramValues& values, int other,
                             const ProgramValues& others);

// The reduced values, by name. `by_rank`: those of the workers, with the same names. A worker of
// weight 0 does not count; if no worker counts, each value is NaN. Sums are formed in the order of
// ranks, so they have the same bits in each run.
std::map<std::string, double> ReduceValues(const std::map<int, ProgramValues>& by_rank);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_PROGRAM_VALUES_H_
