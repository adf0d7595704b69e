// Checker: proves that a set of schedules is right, without a network, for all data and all timings
// at once.
//
// The folder proof/ has the tools that examine schedules without running them over links.
//
// The schedules are replayed (replay.h) on symbols (symbols.h): an element is not a number but the
// set of contributions that were added to make it.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_CHECKER_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_CHECKER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

struct CheckOptions {
  // The number of messages that a link between two ranks holds. The schedules must finish within
  // this bound. 0: a message leaves its sender only when the receiver takes it.
  int channel = 1;
  // Also require that every element of a reduction is ((c0 + c1) + c2) + ..., as a fold in rank
  // order makes it.
  bool rank_order = false;
};

// OK if every rank ends with the result that the primitive promises: each output element contains
// each contribution exactly once, made from the right elements of the inputs. The arguments are
// those of MakeSchedules.
//
// Otherwise the message names one of these faults: a contribution that is missing, doubled or out
// of place, with the rank and the elements; a read before a write; the ranks that wait for each
// other; a message that does not fit (errors of Replay).
absl::Status CheckSchedules(collectives::Primitive primitive,
                            const collectives::CollectiveShape& shape,
                            absl::Span<const std::vector<int64_t>> counts_by_rank,
                            absl::Span<const collectives::Schedule> schedules,
                            const CheckOptions& options);

// Builds the schedules of an algorithm and checks every promise of its row: CheckSchedules with
// links that hold ChannelNeeded messages; the traffic of AlgorithmTraffic; the same number of steps
// on every rank; messages of at most shape.segment elements if the algorithm cuts them; rank order
// if the algorithm claims it (AddsInRankOrder).
absl::Status CheckAlgorithm(collectives::Primitive primitive, collectives::Algorithm algorithm,
                            const collectives::CollectiveShape& shape,
                            absl::Span<const std::vector<int64_t>> counts_by_rank = {});

// OK if each rank sends exactly the messages and elements of AlgorithmTraffic.
absl::Status CheckTraffic(collectives::Primitive primitive, collectives::Algorithm algorithm,
                          const collectives::CollectiveShape& shape,
                          absl::Span<const std::vector<int64_t>> counts_by_rank,
                          absl::Span<const collectives::Schedule> schedules);

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_CHECKER_H_
