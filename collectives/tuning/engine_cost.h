// EngineCosts: a model of the time that the engine needs for a schedule on links whose costs were
// measured. The chooser ranks algorithms by it.
//
// The plain alpha-beta-gamma model (Hockney 1994) explains algorithms on a network, where a sender
// can receive at no cost while it sends. On one host this model cannot rank algorithms. There the
// engine is one thread that copies sent and received bytes itself, so a rank's messages overlap
// with nothing else that the rank does. If ranks outnumber cores, all work happens one after
// another, with a switch whenever a rank has to wait. Therefore schedules are played op by op, on
// cores that ranks share:
//
//   send      message + bytes * write; the peer sees its begin at once, and the whole at its end
//   receive   message + bytes * read, from when the message is visible; ends after the sender
//   reduce    as receive, with `fold`; a fold takes `message` and `fold` for each source
//   copy      bytes * copy
//   waiting   costs nothing if a rank has a core for itself; else `turn` for the next rank
//
// A message is visible `latency` after it was written. Bytes cost more when vectors do not fit the
// cache, so write, read and fold are measured at several sizes of the vector; the nearest size (by
// ratio) counts. The model ignores the depth of links, and that links share the bandwidth of a
// network.
#ifndef TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_
#define TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// Seconds for each byte, for vectors of about `bytes`.
struct ByteCosts {
  int64_t bytes = 0;
  double write = 0, read = 0, fold = 0, copy = 0;
};

// All costs are in seconds.
struct EngineCosts {
  double latency = 0;            // until written bytes are visible
  double message = 0;            // to send or to receive one
  double operation = 0;          // to start one, on each rank
  double turn = 0;               // until the next rank of the same core runs
  std::vector<ByteCosts> bytes;  // ascending by size, at least one

  const ByteCosts& For(int64_t vector_bytes) const;
};

// The time until the last rank has finished. `schedules` are ordered by rank. The ranks of a host
// share its `cores`. Byte costs are taken for the size `vector_bytes`. INVALID_ARGUMENT: the
// schedules do not fit together (a rank waits forever), or there are no byte costs.
absl::StatusOr<double> EngineSeconds(absl::Span<const Schedule> schedules, int element_bytes,
                                     int64_t vector_bytes, const EngineCosts& costs, int cores,
                                     absl::Span<const int> host_of_rank);

// As above, for an algorithm and a vector of `bytes` bytes of float32, cut into segments. Long
// pipelines are not played to their end, because their middle repeats itself.
absl::StatusOr<double> PredictEngineSeconds(Primitive primitive, Algorithm algorithm,
                                            CollectiveShape shape, int64_t bytes,
                                            int64_t segment_bytes, const EngineCosts& costs,
                                            int cores);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_
