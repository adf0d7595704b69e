// Histogram counts values in fixed buckets whose width grows with the value. Buckets are fixed so
// that histograms of different processes and runs can be added. Values 0 to 7 have a bucket each;
// then there are four buckets per octave (8, 10, 12, 14, 16, 20, ...), so the bounds of a bucket
// are within 25 % of its values. The last bucket has all values from 2^41 on. The caller chooses
// the unit: versions, rows, microseconds.
//
// Memory: 32 bytes, and 8 for each bucket from the first to the last one that is used. The values
// of one measure are near each other, so a histogram of all buckets would be mostly empty.
//
// Thread safety: none; a value type.
#ifndef TANDEM_PROTO_HISTOGRAM_H_
#define TANDEM_PROTO_HISTOGRAM_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

inline constexpr size_t kHistogramBuckets = 8 + 4 * 38 + 1;

// The bucket of a value.
inline size_t HistogramBucket(uint64_t value) {
  if (value < 8) return static_cast<size_t>(value);
  const int octave = std::bit_width(value) - 1;  // at least 3
  const size_t quarter = static_cast<size_t>(value >> (octave - 2)) & 3;
  return std::min(kHistogramBuckets - 1, 8 + 4 * static_cast<size_t>(octave - 3) + quarter);
}

// The smallest value of a bucket below kHistogramBuckets.
inline uint64_t HistogramLow(size_t bucket) {
  if (bucket < 8) return bucket;
  const size_t octave = 3 + (bucket - 8) / 4, quarter = (bucket - 8) % 4;
  return (4 + quarter) << (octave - 2);
}

class Histogram {
 public:
  void Add(uint64_t value) { AddTo(HistogramBucket(value), 1); }
  void Merge(const Histogram& other) {
    for (size_t i = 0; i < other.counts_.size(); ++i) AddTo(other.first_ + i, other.counts_[i]);
  }

  // counts()[i] is the number of values in bucket first() + i. All other buckets are empty.
  size_t first() const { return first_; }
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t Count(size_t bucket) const {
    return bucket < first_ || bucket - first_ >= counts_.size() ? 0 : counts_[bucket - first_];
  }

 private:
  void AddTo(size_t bucket, uint64_t values) {
    if (counts_.empty()) first_ = bucket;
    if (bucket < first_) {
      counts_.insert(counts_.begin(), first_ - bucket, 0);
      first_ = bucket;
    }
    if (bucket - first_ >= counts_.size()) counts_.resize(bucket - first_ + 1);
    counts_[bucket - first_] += values;
  }

  size_t first_ = 0;
  std::vector<uint64_t> counts_;
};

}  // namespace tandem

#endif  // TANDEM_PROTO_HISTOGRAM_H_
