// Checks that the replicas of the dense parameters are equal, by comparing digests of all workers.
//
// Thread safety: pure functions.
#ifndef TANDEM_WORKER_DENSE_REPLICA_DIGESTS_H_
#define TANDEM_WORKER_DENSE_REPLICA_DIGESTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tandem::worker {

// The XXH3 hash of the bits of `values`.
uint64_t DigestOf(absl::Span<const float> values);

// `digests`: by rank, taken before `step`. If more than half of the workers have the same digest,
// the workers with other digests are at fault; otherwise all workers are. Workers at fault get
// INTERNAL. The others get ABORTED, which the scheduler treats as a consequence of another worker's
// error. The text names the workers at fault and says what to check.
absl::Status CompareReplicas(absl::Span<const uint64_t> digests, int rank, int64_t step);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_REPLICA_DIGESTS_H_
