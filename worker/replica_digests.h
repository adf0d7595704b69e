// Whether replicas of the dense parameters are what their name says: digests of all workers beside one
// another.
//
// Thread safety: pure functions.
#ifndef TANDEM_WORKER_REPLICA_DIGESTS_H_
#define TANDEM_WORKER_REPLICA_DIGESTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tandem::worker {

// Of their bits: XXH3.
uint64_t DigestOf(absl::Span<const float> values);

// `digests`: by rank, of the moment before `step`. Workers that differ from the digest that more than half of
// them have are at fault; where there is none, all are. On those INTERNAL, on the others ABORTED, which
// the scheduler takes for an echo; the text names those at fault and what to look for.
absl::Status CompareReplicas(absl::Span<const uint64_t> digests, int rank, int64_t step);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPLICA_DIGESTS_H_
