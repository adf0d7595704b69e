// Distribution (proto/wire.proto): statistics of one measure, as messages carry them.
#ifndef TANDEM_PROTO_DISTRIBUTION_H_
#define TANDEM_PROTO_DISTRIBUTION_H_

#include "proto/histogram.h"
#include "proto/wire.pb.h"

namespace tandem {

// Sets the buckets.
void FillBuckets(const Histogram& histogram, Distribution* out);

// False if a bucket does not exist. A peer may send any number of buckets.
bool AreBuckets(const Distribution& distribution);

// Adds `from` to `into`: adds counts, sums and buckets, and takes the larger maximum. Leaves out
// buckets that do not exist. Requires: AreBuckets(*into).
void MergeDistribution(const Distribution& from, Distribution* into);

}  // namespace tandem

#endif  // TANDEM_PROTO_DISTRIBUTION_H_
