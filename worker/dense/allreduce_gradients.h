// Sums the gradients of all workers after each step, then takes one optimizer step with the mean.
// Every worker does the same to its own replica.
//
// Gradients are reduced in one piece after the backward pass, or in buckets during the backward
// pass (Li et al. 2020, "PyTorch Distributed"). A bucket is a run of the flat gradient. The buckets
// are ordered as a backward pass fills them, from the end of the buffer to its start. The first one
// is small, so that data is sent early. All workers reduce the buckets in the same order, so a
// bucket that is ready early waits for those before it.
//
// The sum of n is usually one more element of the gradient. In these cases n is sent separately, in
// f32:
//
//   16-bit wire        gradients are multiplied by a power of two near 1 / (samples of all workers)
//                      before they are rounded
//   codec              n goes before the gradient, because the part of a gradient that a codec has
//                      not sent is weighted by the samples of all workers (codecs/codec.h)
//   sharded optimizer  ZeRO stage 1, Rajbhandari et al. 2020: each worker has a share of the
//                      blocks. Gradients are reduced to the worker that has the block; the worker
//                      updates it, and all workers gather the values. The traffic is that of an
//                      all-reduce.
//   gradients on GPUs  the sum in GPU memory is of the gradient alone
//
// A step without samples of any worker closes an epoch. If `compares`, the workers then exchange
// digests of their parameters (replica_digests.h).
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_DENSE_ALLREDUCE_GRADIENTS_H_
#define TANDEM_WORKER_DENSE_ALLREDUCE_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/dense/dense_reduction.h"

namespace tandem::worker {

// Elements [begin, begin + count) of the flat gradient, in the order in which they are reduced:
// from the end to the start. The first bucket has about a quarter of `bucket_bytes`. One bucket if
// `bucket_bytes` is 0.
std::vector<collectives::Piece> GradientBuckets(int64_t count, int64_t bucket_bytes);

// The algorithm that the job names (by its name in lower case); none for AUTO.
absl::optional<collectives::Algorithm> DenseAlgorithm(const job::ResolvedJob& plan);

class AllReduceGradients final : public DenseReduction {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    collectives::DataType wire = collectives::DataType::kF32;  // kF32, kF16 or kBF16
    int64_t bucket_bytes = 0;
    absl::optional<collectives::Algorithm> algorithm;  // none: the group chooses
    int64_t batch = 1;   // samples of one worker's step, for 16-bit wires
    bool codec = false;  // a codec computes the sum
    bool sharded_optimizer = false;
    bool on_device = false;  // the sum is of gradients on a GPU
    bool compares = false;   // replicas, which have the same bits, when an epoch ends
  };
  static std::unique_ptr<DenseReduction> New(const job::ResolvedJob& plan, int rank,
                                             int64_t bucket_bytes, DenseParameters& dense);

  // `dense` outlives this.
  AllReduceGradients(DenseParameters& dense, const Options& options);

  void Begin(absl::Span<float> gradient, const Step& step) override;
  void Ready(int64_t first) override;
  void Close() override;
  void BeginGather() override;
  const Request* Next() override;
  void OnDone() override;
  absl::Status failure() const override { return failure_; }
  int64_t needs_from() const override;
  bool waits_for_close() const override { return stage_ == Stage::kClose; }
  bool over() const override { return stage_ == Stage::kIdle; }
  double samples_of_all() const override { return samples_of_all_; }

 private:
  enum class Stage {
    kIdle,
    kReduce,   // the gradient
    kSamples,  // n, if it is sent separately
    kClose,    // waits for Close, then takes the optimizer step
    kValues,   // sharded optimizer: workers gather the values
    kDigests,  // end of an epoch: workers gather digests
    kGather,   // for a checkpoint
  };

  bool at_once() const {
    return options_.codec || options_.on_device || options_.sharded_optimizer;
  }
  void MakeRequest();
  void RequestGradient();
  void RequestBucket(collectives::Piece bucket);
  void RequestShares(collectives::Primitive primitive, float* all);
  void Apply();
  void BeginCompare();

  DenseParameters& dense_;
  const Options options_;
  const bool samples_apart_;  // n is not an element of the gradient
  const std::vector<collectives::Piece> buckets_;
  std::vector<int64_t> shares_;  // sharded optimizer: floats of each rank's blocks
  std::vector<int64_t> slot_shares_;
  std::vector<float> gathered_slots_;
  std::vector<uint64_t> digests_;  // by rank
  std::vector<int64_t> digest_shares_;
  absl::Status failure_;
  float to_wire_ = 1;            // 16-bit wires: factor
  std::vector<uint8_t> narrow_;  // the gradient in 16 bits

  Stage stage_ = Stage::kIdle;
  Request request_;
  bool under_way_ = false, closed_ = false;
  absl::Span<float> gradient_;
  int64_t ready_from_ = 0;
  size_t reduced_ = 0;  // number of reduced buckets
  int64_t step_ = 0, sample_clock_ = 0;
  float samples_ = 0;  // n, then its sum, if n is sent separately
  double samples_of_all_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_ALLREDUCE_GRADIENTS_H_
