// Statistics of one kind of staleness: exact count, sum and maximum, and a histogram.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_RECORD_MEASURE_H_
#define TANDEM_SERVER_RECORD_MEASURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "proto/distribution.h"
#include "proto/histogram.h"
#include "proto/wire.pb.h"

namespace tandem::server {

// The statistics without the histogram.
struct Sum {
  uint64_t count = 0;
  double sum = 0;  // exact, since values are integers
  double max = 0;

  void Add(int64_t value) {
    ++count;
    sum += static_cast<double>(value);
    max = std::max(max, static_cast<double>(value));
  }
  void Merge(const Sum& other) {
    count += other.count;
    sum += other.sum;
    max = std::max(max, other.max);
  }
};

struct Measure : Sum {
  Histogram histogram;

  // Negative values count as 0 in the histogram.
  void Add(int64_t value) {
    Sum::Add(value);
    histogram.Add(static_cast<uint64_t>(std::max<int64_t>(0, value)));
  }
  void Merge(const Measure& other) {
    Sum::Merge(other);
    histogram.Merge(other.histogram);
  }
};

inline void FillDistribution(const Sum& sum, Distribution* out) {
  out->set_count(sum.count);
  out->set_sum(sum.sum);
  out->set_max(sum.max);
}

inline void FillDistribution(const Measure& measure, Distribution* out) {
  FillDistribution(static_cast<const Sum&>(measure), out);
  FillBuckets(measure.histogram, out);
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_MEASURE_H_
