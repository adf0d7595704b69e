// GradientCodec: sums gradients over a group, but sends fewer bytes than the gradients have.
//
// The folder codecs/ has one file for each codec.
//
// A codec replaces each rank's gradient by an approximation that takes fewer bytes, `sent`. All
// ranks get the sum of these approximations. Codes of a linear codec (PowerSGD) can be added, so an
// all-reduce carries them. Codes of the others (top-k, sign) cannot be added: an allgather brings
// all codes to all ranks, and each rank decodes and adds them in rank order.
//
// The difference between gradient and approximation is lost, unless ErrorFeedback wraps the codec.
//
// Thread safety: none; the group's thread. All ranks must use the same codec with the same
// settings, and pass vectors of the same length in the same order.
#ifndef TANDEM_COLLECTIVES_CODECS_CODEC_H_
#define TANDEM_COLLECTIVES_CODECS_CODEC_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/group.h"

namespace tandem::collectives {

class GradientCodec {
 public:
  virtual ~GradientCodec() = default;
  virtual absl::string_view name() const = 0;
  // Whether codes can be added. Then an all-reduce carries them; otherwise an allgather.
  virtual bool linear() const = 0;

  // Sets `sent` to the approximation of this rank's `mine`, and `sum` to the sum of the
  // approximations of all ranks. All three spans have the same size. `sum` may be the same memory
  // as `mine`; `sent` must not overlap either.
  virtual absl::Status Sum(Group& group, absl::Span<const float> mine, absl::Span<float> sum,
                           absl::Span<float> sent) = 0;

  // The memory between calls, as bytes for a checkpoint; SetState reads it into a codec of the same
  // settings. Empty: there is none. DATA_LOSS: the bytes are not from this kind of codec.
  virtual std::string State() const { return ""; }
  virtual absl::Status SetState(absl::string_view state);
};

// Sends the `fraction` of elements that are largest in magnitude (at least one element), each with
// its index (Aji & Heafield 2017). Ties go to the lower index. A NaN counts as larger than any
// number, so it is sent at once and all ranks see it. Not linear. 8 bytes for each element sent.
// INVALID_ARGUMENT unless 0 < fraction <= 1.
absl::StatusOr<std::unique_ptr<GradientCodec>> NewTopKCodec(double fraction);

// Sends one bit for each element, its sign, and one scale for each run of 1,024 elements, the mean
// magnitude of the run. The scale keeps the length of the step (Bernstein et al. 2018), and makes
// the codec a contraction (Karimireddy et al. 2019). Zero counts as positive. Not linear.
std::unique_ptr<GradientCodec> NewSignCodec();

// Sends an approximation of low rank, which one step of power iteration finds (Vogels et al. 2019).
// The codec treats the vector as a nearly square matrix M [n, m], and replaces it by P [n, rank]
// and Q [m, rank]. P = M Q, made orthonormal; then Q = M^T P. The two all-reduces have (n + m) *
// rank floats together. Q is kept from call to call (warm start). The first Q has random numbers of
// `seed`, which must be the same on all ranks. Linear. INVALID_ARGUMENT unless rank >= 1.
absl::StatusOr<std::unique_ptr<GradientCodec>> NewPowerSgdCodec(int rank, uint64_t seed);

// Adds to every gradient the part of earlier gradients that the codec did not send (Seide et al.
// 2014; Karimireddy et al. 2019, "Error feedback fixes SignSGD"). This memory belongs to one rank.
//
// Gradients are sums over samples, and the caller divides a sum by the samples of all ranks. That
// number differs from step to step (the last step of an epoch is short). Therefore the memory is
// kept per sample: the unsent part of a step of 1,024 samples has the same weight in the next step,
// even if that has only 3 samples.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::unique_ptr<GradientCodec> codec) : codec_(std::move(codec)) {}

  const GradientCodec& codec() const { return *codec_; }
  // In place: this rank's gradient becomes the sum of the approximations that all ranks sent.
  // `samples` is the number of samples of all ranks together in this step. If it is 0, nothing is
  // sent, the memory stays, and the sum is zero.
  absl::Status Sum(Group& group, absl::Span<float> gradient, double samples);
  // The memory of this object and its codec, as GradientCodec::State.
  std::string State() const;
  absl::Status SetState(absl::string_view state);
  // The part that has not been sent yet, per sample.
  absl::Span<const float> residual() const { return residual_; }

 private:
  const std::unique_ptr<GradientCodec> codec_;
  std::vector<float> residual_, sent_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CODECS_CODEC_H_
