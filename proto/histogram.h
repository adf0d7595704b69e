// Histogram counts values in fixed buckets whose width grows with the value. Buckets are fixed so
// that histograms of different processes and runs can be added. Values 0 to 7 have a bucket each;
// then there are four buckets per octave (8, 10, 12, 14, 16, 20, ...), so the bounds of a bucket
// are within 25 % of its values. The last bucket has all values from 2^41 on. The caller chooses
// the unit: versions, rows, microseconds.
//
// Thread safety: none; a value type.
#ifndef TANDEM_PROTO_HISTOGRAM_H_
#define TANDEM_PROTO_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

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

struct Histogram {
  std::array<uint64_t, kHistogramBuckets> counts = {};
  void Add(uint64_t value) { ++counts[HistogramBucket(value)]; }
  void Merge(const Histogram& other) {
    for (size_t b = 0; b < kHistogramBuckets; ++b) counts[b] += other.counts[b];
  }
};

}  // namespace tandem

#endif  // TANDEM_PROTO_HISTOGRAM_H_
