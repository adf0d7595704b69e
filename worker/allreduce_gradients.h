// Sums the gradients of all workers after each step, then takes one optimizer step with the mean.
// Every worker does the same to its own replica.
//
// Gradients are reduced at once after the backward pass, or in buckets while it goes on (Li et al.
// 2020, "PyTorch Distributed"): a bucket is a run of the flat gradient, the buckets follow one
// another in the order in which a backward pass fills them, from the end of the buffer to its
// start, and the first is small so that something travels early. All workers reduce the buckets in
// the same order, so a bucket that is ready early waits for those before it.
//
// The sum of n travels as one more element. On a 16-bit wire gradients are multiplied by a power of
// two near 1 / (samples of all workers) before they are rounded, and n travels apart, in f32; so it
// does with a codec (codecs/codec.h), and before the gradient, since what a codec has not sent weighs
// by the samples of all; and with a sharded optimizer. The latter (ZeRO stage 1,
// Rajbhandari et al. 2020) gives each worker a share of the blocks: gradients are reduced to who
// has the block, which updates it, and the values go round: the traffic of an all-reduce.
//
// A step that nobody has samples for closes an epoch. Then all tell each other a digest of their
// parameters (replica_digests.h), if they are to.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_ALLREDUCE_GRADIENTS_H_
#define TANDEM_WORKER_ALLREDUCE_GRADIENTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "worker/dense_reduction.h"

namespace tandem::worker {

// Elements [begin, begin + count) of the flat gradient, in the order in which they are reduced:
// from the end to the start, the first about a quarter of `bucket_bytes`. One bucket if that is 0.
std::vector<collectives::Piece> GradientBuckets(int64_t count, int64_t bucket_bytes);

// The algorithm that a job names: the one of that name, in lower case. Nothing for AUTO.
absl::optional<collectives::Algorithm> DenseAlgorithm(const job::JobPlan& plan);

class AllReduceGradients final : public DenseReduction {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    collectives::DataType wire = collectives::DataType::kF32;  // kF32, kF16 or kBF16
    int64_t bucket_bytes = 0;
    absl::optional<collectives::Algorithm> algorithm;  // none: the group chooses
    int64_t batch = 1;   // samples of a step of one worker, for 16-bit wires
    bool codec = false;  // the sum is a codec's
    bool sharded_optimizer = false;
    bool on_device = false;  // the sum is one of gradients on a GPU
    bool compares = false;   // replicas have the same bits, and are compared as an epoch ends
  };
  static std::unique_ptr<DenseReduction> New(const job::JobPlan& plan, int rank,
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
    kSamples,  // n, where it travels apart
    kClose,    // waits for it, then takes the optimizer step
    kValues,   // sharded optimizer: values go round
    kDigests,  // an epoch ends: digests go round
    kGather,   // for a save
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
  const bool samples_apart_;  // n is no element of the gradient
  const std::vector<collectives::Piece> buckets_;
  std::vector<int64_t> shares_;  // sharded optimizer: floats of each rank's blocks
  std::vector<int64_t> slot_shares_;
  std::vector<float> gathered_slots_;
  std::vector<uint64_t> digests_;  // by rank
  std::vector<int64_t> digest_shares_;
  absl::Status failure_;
  float to_wire_ = 1;            // 16-bit wires: factor
  std::vector<uint8_t> narrow_;  // the gradient as it travels

  Stage stage_ = Stage::kIdle;
  Request request_;
  bool under_way_ = false, closed_ = false;
  absl::Span<float> gradient_;
  int64_t ready_from_ = 0;
  size_t reduced_ = 0;  // buckets
  int64_t step_ = 0;
  float samples_ = 0;  // n, then its sum, if it travels apart
  double samples_of_all_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ALLREDUCE_GRADIENTS_H_
