#include "worker/loss_history.h"

#include <algorithm>

namespace tandem::worker {

void LossHistory::Add(double loss_sum, int64_t samples) {
  if (buckets_.empty() || steps_in_last_ == steps_a_bucket_) {
    if (buckets_.size() == kMax) {
      for (size_t i = 0; i < kMax / 2; ++i) {
        const Part &first = buckets_[2 * i], &second = buckets_[2 * i + 1];
        buckets_[i] = {first.loss + second.loss, first.samples + second.samples};
      }
      buckets_.resize(kMax / 2);
      steps_a_bucket_ *= 2;
    }
    buckets_.emplace_back();
    steps_in_last_ = 0;
  }
  buckets_.back().loss += loss_sum;
  buckets_.back().samples += static_cast<double>(samples);
  ++steps_in_last_;
}

LossHistory::Part LossHistory::Last(double share) const {
  double all = 0;
  for (const Part& bucket : buckets_) all += bucket.samples;
  Part out;
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket) {
    const double wanted = std::min(bucket->samples, share * all - out.samples);
    if (wanted <= 0) break;
    out.loss += bucket->loss * wanted / bucket->samples;
    out.samples += wanted;
  }
  return out;
}

}  // namespace tandem::worker
