// PairInteraction computes DLRM's dot products of all pairs (Naumov et al. 2019): n vectors of
// `dim` floats per sample give n (n - 1) / 2 numbers, in the order (1,0), (2,0), (2,1), (3,0), ...
// The vectors stay where they are. Each is described by its place in sample 0 and the distance to
// the next sample.
//
// The products are plain loops. A batched product of LibTorch would pay for a call per sample,
// compute both triangles and need a gather after it. The cost is about 2 n n dim multiply-adds per
// sample and direction.
//
// Thread safety: the methods are const and may run on many threads on different samples.
#ifndef TANDEM_MODELS_PAIR_INTERACTION_H_
#define TANDEM_MODELS_PAIR_INTERACTION_H_

#include <cstdint>

#include "absl/types/span.h"

namespace tandem::models {

// One vector of each sample: sample s has it at base + s * stride (in floats).
template <typename T>
struct VectorOfSamples {
  T* base = nullptr;
  int64_t stride = 0;
};

class PairInteraction {
 public:
  PairInteraction(int vectors, int dim);

  int pairs() const { return vectors_ * (vectors_ - 1) / 2; }

  // For samples [begin, end): writes pairs() floats at out + s * out_stride.
  void Forward(int64_t begin, int64_t end, absl::Span<const VectorOfSamples<const float>> in,
               float* out, int64_t out_stride) const;

  // d_in[i] = sum over j != i of d_out(i, j) * in[j]. Overwrites `d_in`, which must not overlap
  // `in`.
  void Backward(int64_t begin, int64_t end, absl::Span<const VectorOfSamples<const float>> in,
                const float* d_out, int64_t d_out_stride,
                absl::Span<const VectorOfSamples<float>> d_in) const;

 private:
  const int vectors_, dim_;
  const int padded_vectors_, padded_dim_;  // rounded up to whole lanes
};

}  // namespace tandem::models

#endif  // TANDEM_MODELS_PAIR_INTERACTION_H_
