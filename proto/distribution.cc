#include "proto/distribution.h"

#include <algorithm>

namespace tandem {

void FillBuckets(const Histogram& histogram, Distribution* out) {
  out->mutable_bucket()->Assign(histogram.counts().begin(), histogram.counts().end());
  out->set_first_bucket(static_cast<uint32_t>(histogram.first()));
}

void MergeDistribution(const Distribution& from, Distribution* into) {
  if (from.count() == 0) return;
  into->set_max(into->count() == 0 ? from.max() : std::max(into->max(), from.max()));
  into->set_count(into->count() + from.count());
  into->set_sum(into->sum() + from.sum());
  if (from.bucket().empty() || !AreBuckets(from)) return;
  if (into->bucket().empty()) {
    *into->mutable_bucket() = from.bucket();
    into->set_first_bucket(from.first_bucket());
    return;
  }
  const auto first = [](const Distribution& d) { return static_cast<int>(d.first_bucket()); };
  const int begin = std::min(first(from), first(*into));
  const int end = std::max(first(from) + from.bucket_size(), first(*into) + into->bucket_size());
  if (begin < first(*into) || end > begin + into->bucket_size()) {
    google::protobuf::RepeatedField<uint64_t> wider;
    wider.Resize(end - begin, 0);
    std::copy(into->bucket().begin(), into->bucket().end(), wider.begin() + (first(*into) - begin));
    into->mutable_bucket()->Swap(&wider);
    into->set_first_bucket(static_cast<uint32_t>(begin));
  }
  for (int b = 0; b < from.bucket_size(); ++b) {
    uint64_t& values = (*into->mutable_bucket())[first(from) - begin + b];
    values += from.bucket(b);
  }
}

bool AreBuckets(const Distribution& distribution) {
  return distribution.first_bucket() < kHistogramBuckets &&
         static_cast<size_t>(distribution.bucket_size()) <=
             kHistogramBuckets - distribution.first_bucket();
}

}  // namespace tandem
