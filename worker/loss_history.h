// The training loss of a worker over its samples, in coarse buckets. Gives the loss over the last
// part of the samples. Buckets are cut by steps, not by time, so that runs with the same arithmetic
// have the same history at any speed.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_LOSS_HISTORY_H_
#define TANDEM_WORKER_LOSS_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::worker {

class LossHistory {
 public:
  // A sum of losses, and the number of samples in the sum.
  struct Part {
    double loss = 0, samples = 0;
  };
  LossHistory() { buckets_.reserve(kMax); }

  // A step with samples has been computed.
  void Add(double loss_sum, int64_t samples);
  // The sum over the last `share` of the samples. A bucket that is only partly in this share counts
  // in proportion.
  Part Last(double share) const;

 private:
  // When this many buckets are full, neighbours are merged in pairs. A tenth of the samples then
  // still spans at least six buckets.
  static constexpr size_t kMax = 128;

  std::vector<Part> buckets_;
  int64_t steps_a_bucket_ = 1;
  int64_t steps_in_last_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_LOSS_HISTORY_H_
