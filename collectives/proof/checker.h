// Proves a set of schedules right without a network, for all data and all timings at once.
//
// The schedules are replayed (replay.h) on symbols (symbols.h): an element holds not a number but
// the contributions that were added to make it.
#ifndef TANDEM_COLLECTIVES_PROOF_CHECKER_H_
#define TANDEM_COLLECTIVES_PROOF_CHECKER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

struct CheckOptions {
  // Messages that a link between two ranks holds; the schedules must finish within this bound. 0: a
  // message leaves its sender only when the receiver takes it.
  int channel = 1;
  // Also require that every element of a reduction is ((c0 + c1) + c2) + ..., as a fold in rank
  // order makes it.
  bool rank_order = false;
};

// OK if every rank ends with what the primitive promises: each contribution exactly once in each
// element of the output of each rank that has one, made from the right elements of the inputs. The
// arguments are those of MakeSchedules. Otherwise the message says which contribution is missing,
// doubled or out of place, at which rank and elements; or what is read before it was written; or
// which rank waits for whom; or which message does not fit (errors of Replay).
absl::Status CheckSchedules(Primitive primitive, const CollectiveShape& shape,
                            absl::Span<const std::vector<int64_t>> counts_by_rank,
                            absl::Span<const Schedule> schedules, const CheckOptions& options);

// Builds the schedules of an algorithm and checks all that it promises: CheckSchedules with links
// of as many messages as ChannelNeeded says, the traffic of AlgorithmTraffic, as many steps for
// every rank, messages of at most shape.segment elements where it cuts them, and the rank order of
// those that claim it (AddsInRankOrder).
absl::Status CheckAlgorithm(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
                            absl::Span<const std::vector<int64_t>> counts_by_rank = {});

// OK if each rank sends exactly what AlgorithmTraffic says.
absl::Status CheckTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
                          absl::Span<const std::vector<int64_t>> counts_by_rank,
                          absl::Span<const Schedule> schedules);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROOF_CHECKER_H_
