#include "models/pair_interaction.h"

#include <cstring>
#include <vector>

#include "base/check.h"

namespace tandem::models {
namespace {

// The loops process 16 floats at a time, as two vectors of eight. A vector type (g++ and clang)
// keeps the sums in registers; the compilers' vectorisers do not do that for a loop over an array.
constexpr int kLanes = 16;
typedef float Half __attribute__((vector_size(kLanes / 2 * sizeof(float))));

int RoundUp(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// out[0..kLanes) = sum over k of factors[k] * rows[k * row_length + 0..kLanes).
inline void WeightedSum(const float* factors, const float* rows, int row_length, int count,
                        float* out) {
  Half low = {}, high = {};
  for (int k = 0; k < count; ++k) {
    const float* row = rows + int64_t{k} * row_length;
    Half row_low, row_high;
    std::memcpy(&row_low, row, sizeof(Half));
    std::memcpy(&row_high, row + kLanes / 2, sizeof(Half));
    low += factors[k] * row_low;
    high += factors[k] * row_high;
  }
  std::memcpy(out, &low, sizeof(Half));
  std::memcpy(out + kLanes / 2, &high, sizeof(Half));
}

}  // namespace

PairInteraction::PairInteraction(int vectors, int dim)
    : vectors_(vectors), dim_(dim), padded_vectors_(RoundUp(vectors)), padded_dim_(RoundUp(dim)) {
  TANDEM_CHECK(vectors > 0 && dim > 0);
}

void PairInteraction::Forward(int64_t begin, int64_t end,
                              absl::Span<const VectorOfSamples<const float>> in, float* out,
                              int64_t out_stride) const {
  TANDEM_CHECK(static_cast<int>(in.size()) == vectors_);
  // The sample's vectors as columns, so that one row of products is a weighted sum of rows.
  std::vector<float> columns(static_cast<size_t>(dim_) * padded_vectors_, 0.0f);
  std::vector<float> products(pairs() + kLanes);
  for (int64_t s = begin; s < end; ++s) {
    for (int j = 0; j < vectors_; ++j) {
      const float* vector = in[j].base + s * in[j].stride;
      for (int k = 0; k < dim_; ++k) columns[k * padded_vectors_ + j] = vector[k];
    }
    float* pair = products.data();
    for (int i = 1; i < vectors_; ++i) {
      const float* vector = in[i].base + s * in[i].stride;
      for (int j = 0; j < i; j += kLanes) {
        WeightedSum(vector, &columns[j], padded_vectors_, dim_, pair + j);
      }
      pair += i;  // the next row overwrites what the last piece wrote too much
    }
    std::memcpy(out + s * out_stride, products.data(), pairs() * sizeof(float));
  }
}

void PairInteraction::Backward(int64_t begin, int64_t end,
                               absl::Span<const VectorOfSamples<const float>> in,
                               const float* d_out, int64_t d_out_stride,
                               absl::Span<const VectorOfSamples<float>> d_in) const {
  TANDEM_CHECK(static_cast<int>(in.size()) == vectors_ && in.size() == d_in.size());
  std::vector<float> rows(static_cast<size_t>(vectors_) * padded_dim_, 0.0f);
  std::vector<float> factors(static_cast<size_t>(vectors_) * vectors_, 0.0f);  // symmetric
  std::vector<float> sum(padded_dim_);
  for (int64_t s = begin; s < end; ++s) {
    const float* pair = d_out + s * d_out_stride;
    for (int i = 0; i < vectors_; ++i) {
      const float* vector = in[i].base + s * in[i].stride;
      for (int k = 0; k < dim_; ++k) rows[i * padded_dim_ + k] = vector[k];
      for (int j = 0; j < i; ++j, ++pair) {
        factors[i * vectors_ + j] = *pair;
        factors[j * vectors_ + i] = *pair;
      }
    }
    for (int i = 0; i < vectors_; ++i) {
      float* gradient = d_in[i].base + s * d_in[i].stride;
      for (int k = 0; k < dim_; k += kLanes) {
        WeightedSum(&factors[i * vectors_], &rows[k], padded_dim_, vectors_, &sum[k]);
      }
      std::memcpy(gradient, sum.data(), dim_ * sizeof(float));
    }
  }
}

}  // namespace tandem::models
