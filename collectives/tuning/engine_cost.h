// How long the engine takes for a schedule on links that have been measured. A chooser ranks
// algorithms by it.
//
// The plain alpha-beta-gamma model (Hockney 1994) explains algorithms on a network, where sending costs
// the sender nothing while it receives. On one host it cannot rank them: the engine is one thread
// that copies what it sends and what it receives itself, messages overlap with nothing else that
// their rank does, and where ranks outnumber cores all of it happens one after another, with a
// switch whenever a rank has to wait. So schedules are played, op by op, on cores that ranks share:
//
//   send      message + bytes * write;  visible to the peer from its begin, and wholly at its end
//   receive   message + bytes * read, from when the message is visible; ends after the sender
//   reduce    the same with `fold`; a fold takes `message` and `fold` for each source
//   copy      bytes * copy
//   to wait   costs nothing if a rank has a core for itself; else `turn` for the next rank
//
// and a message is visible `latency` after it was written. Bytes cost more when vectors leave the
// cache: write, read and fold are measured at several sizes of the vector, and taken at the nearest
// (by ratio). The depth of links is not modelled, nor that they share the bandwidth of a network.
#ifndef TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_
#define TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

struct ByteCosts {  // seconds a byte, for vectors of about `bytes`
  int64_t bytes = 0;
  double write = 0, read = 0, fold = 0, copy = 0;
};

struct EngineCosts {             // seconds
  double latency = 0;            // from written to visible
  double message = 0;            // to send, or to receive
  double operation = 0;          // to start one, on each rank
  double turn = 0;               // until another rank of the same core goes on
  std::vector<ByteCosts> bytes;  // by ascending size, at least one

  const ByteCosts& For(int64_t vector_bytes) const;
};

// Until the last rank has finished. `schedules` by rank; ranks of a host share its `cores`.
// `vector_bytes` is the size that byte costs are taken for. INVALID_ARGUMENT: the schedules do not
// fit together (a rank waits for ever), or costs without sizes.
absl::StatusOr<double> EngineSeconds(absl::Span<const Schedule> schedules, int element_bytes,
                                     int64_t vector_bytes, const EngineCosts& costs, int cores,
                                     absl::Span<const int> host_of_rank);

// The same for an algorithm and a vector of `bytes` of float32, cut into segments. Long pipelines
// are not played to their end: their middle repeats itself.
absl::StatusOr<double> PredictEngineSeconds(Primitive primitive, Algorithm algorithm,
                                            CollectiveShape shape, int64_t bytes,
                                            int64_t segment_bytes, const EngineCosts& costs,
                                            int cores);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TUNING_ENGINE_COST_H_
