// Statistics of one kind of staleness: exact count, sum and maximum, and a histogram.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_MEASURE_H_
#define TANDEM_SERVER_MEASURE_H_

#include <algorithm>
#include <cstdint>

#include "proto/histogram.h"

namespace tandem::server {

struct Measure {
  uint64_t count = 0;
  double sum = 0;  // exact, since values are integers
  double max = 0;
  Histogram histogram;

  // Negative values count as 0 in the histogram.
  void Add(int64_t value) {
    ++count;
    sum += static_cast<double>(value);
    max = std::max(max, static_cast<double>(value));
    histogram.Add(static_cast<uint64_t>(std::max<int64_t>(0, value)));
  }
  void Merge(const Measure& other) {
    count += other.count;
    sum += other.sum;
    max = std::max(max, other.max);
    histogram.Merge(other.histogram);
  }
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_MEASURE_H_
