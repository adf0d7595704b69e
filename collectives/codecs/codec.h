// Sums gradients over a group while sending less than they hold.
//
// A codec replaces each rank's gradient by something that takes fewer bytes, `sent`, and gives all
// ranks the sum of that. Linear codecs (PowerSGD) add up what they send, by all-reduce; for the
// others (top-k, sign) a sum of codes means nothing, so all codes go to all ranks (allgather) and
// each decodes and adds them in rank order.
//
// What a codec loses is lost, unless ErrorFeedback wraps it.
//
// Thread safety: none; the group's thread. All ranks use the same codec with the same settings, and
// give it vectors of the same length in the same order.
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
  // Whether codes may be added up: then all-reduce carries them, else allgather must.
  virtual bool linear() const = 0;

  // sum = the sum over ranks of what they send for their `mine`; `sent` = this rank's part of it.
  // All three have the same size; `sum` may be `mine`, `sent` overlaps nothing.
  virtual absl::Status Sum(Group& group, absl::Span<const float> mine, absl::Span<float> sum,
                           absl::Span<float> sent) = 0;

  // What it remembers from call to call, as bytes, and back into one of the same settings: for saves.
  // Empty: nothing. DATA_LOSS for bytes that are none of its own.
  virtual std::string State() const { return ""; }
  virtual absl::Status SetState(absl::string_view state);
};

// The `fraction` of elements that are largest in magnitude (at least one), as numbers and places
// (Aji & Heafield 2017). Ties go to the lower place. A NaN counts as larger than any number, so it
// is sent at once, and all ranks see it. Not linear. 8 bytes an element kept.
// INVALID_ARGUMENT unless 0 < fraction <= 1.
absl::StatusOr<std::unique_ptr<GradientCodec>> NewTopKCodec(double fraction);

// One bit an element, its sign, times the mean magnitude of each run of 1,024 elements, so that the
// step keeps its length (Bernstein et al. 2018; the scale makes it a contraction, Karimireddy et
// al. 2019). Zero counts as positive. Not linear.
std::unique_ptr<GradientCodec> NewSignCodec();

// The best approximation of low rank that one step of power iteration finds (Vogels et al. 2019):
// the vector as a nearly square matrix M [n, m] becomes P [n, rank] and Q [m, rank]. P = M Q, made
// orthonormal, Q = M^T P: two all-reduces of (n + m) * rank floats. Q is kept from call to call
// (warm start) and begins with random numbers of `seed`, which must be the same on all ranks.
// Linear. INVALID_ARGUMENT unless rank >= 1.
absl::StatusOr<std::unique_ptr<GradientCodec>> NewPowerSgdCodec(int rank, uint64_t seed);

// Adds to every gradient what the codec did not send of those before (Seide et al. 2014;
// Karimireddy et al. 2019, "Error feedback fixes SignSGD"). The memory is of this rank alone.
//
// Gradients are sums over samples, and who asks for them divides by the samples of all ranks, which
// differ from step to step (the last one of an epoch is short). So what is kept is kept per sample:
// what a step of 1,024 samples did not send weighs as much in the next step if that has only 3.
class ErrorFeedback {
 public:
  explicit ErrorFeedback(std::unique_ptr<GradientCodec> codec) : codec_(std::move(codec)) {}

  const GradientCodec& codec() const { return *codec_; }
  // In place: this rank's gradient becomes the sum of what all ranks sent. `samples`: of all ranks
  // together, in this step. If there are none, nothing is sent or forgotten, and the sum is zero.
  absl::Status Sum(Group& group, absl::Span<float> gradient, double samples);
  // What it and its codec remember, as GradientCodec::State.
  std::string State() const;
  absl::Status SetState(absl::string_view state);
  // What has not been sent yet, per sample.
  absl::Span<const float> residual() const { return residual_; }

 private:
  const std::unique_ptr<GradientCodec> codec_;
  std::vector<float> residual_, sent_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CODECS_CODEC_H_
