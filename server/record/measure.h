// Statistics of one kind of staleness (exact count, sum and maximum, and a histogram), and of the
// samples that counted.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_RECORD_MEASURE_H_
#define TANDEM_SERVER_RECORD_MEASURE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "policies/policy.h"
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

// How many samples of updates counted, and how many of those with label 1 (SampleShare in
// proto/wire.proto). An update counts once it is applied or dropped.
struct SampleCounts {
  uint64_t sent = 0, positives_sent = 0;
  double applied = 0, positives_applied = 0;
  bool labels_known = true;  // of all updates

  // `share`: how much of the update counted (policies::Transform).
  void Add(const policies::Update& update, float share) {
    sent += update.samples;
    applied += static_cast<double>(share) * static_cast<double>(update.samples);
    labels_known = labels_known && update.positives <= update.samples;
    if (!labels_known) return;
    positives_sent += update.positives;
    positives_applied += static_cast<double>(share) * static_cast<double>(update.positives);
  }
  void Merge(const SampleCounts& other) {
    sent += other.sent;
    applied += other.applied;
    labels_known = labels_known && other.labels_known;
    positives_sent += other.positives_sent;
    positives_applied += other.positives_applied;
  }
};

inline void FillSamples(const SampleCounts& counts, SampleShare* out) {
  out->set_sent(counts.sent);
  out->set_applied(counts.applied);
  if (!counts.labels_known) return;
  out->set_positives_sent(counts.positives_sent);
  out->set_positives_applied(counts.positives_applied);
}

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
