// Built with -ffp-contract=off: a fused multiply-add would round differently from the plain loop
// that pooling.h promises.
#include "data/pooling.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::data {
namespace {

// The number of cells. Inputs without offsets have one occurrence per cell.
size_t CellCount(const SparseInput& input) {
  return input.offsets.empty() ? input.index.size() : input.offsets.size() - 1;
}

float Weight(const SparseInput& input, size_t o) {
  return input.weights.empty() ? 1.0f : input.weights[o];
}

void CheckShape(const SparseInput& input, int dim, size_t rows, size_t pooled_floats) {
  TANDEM_CHECK(dim > 0);
  TANDEM_CHECK(rows == input.keys.size());
  TANDEM_CHECK(pooled_floats == CellCount(input) * dim);
  TANDEM_CHECK(input.weights.empty() || input.weights.size() == input.index.size());
  TANDEM_CHECK(input.offsets.empty() || input.offsets.back() == input.index.size());
}

void Scale(float factor, const float* from, int dim, float* to) {
  for (int i = 0; i < dim; ++i) to[i] = factor * from[i];
}

void AddScaled(float factor, const float* from, int dim, float* to) {
  for (int i = 0; i < dim; ++i) to[i] += factor * from[i];
}

void Add(const float* from, int dim, float* to) {
  for (int i = 0; i < dim; ++i) to[i] += from[i];
}

// The case of one row per cell with factor 1: a plain gather.
void GatherRows(const SparseInput& input, int dim, const float* const* rows, float* cells) {
  const uint32_t* index = input.index.data();
  for (size_t c = 0; c < input.index.size(); ++c) {
    std::copy_n(rows[index[c]], dim, cells + c * dim);
  }
}

void PoolCell(const SparseInput& input, int dim, const float* const* rows, size_t begin, size_t end,
              float* cell) {
  if (begin == end) {
    std::fill_n(cell, dim, 0.0f);
    return;
  }
  Scale(Weight(input, begin), rows[input.index[begin]], dim, cell);
  for (size_t o = begin + 1; o < end; ++o) {
    AddScaled(Weight(input, o), rows[input.index[o]], dim, cell);
  }
}

}  // namespace

void PoolRows(const SparseInput& input, int dim, absl::Span<const float* const> rows,
              absl::Span<float> cells) {
  CheckShape(input, dim, rows.size(), cells.size());
  if (input.offsets.empty() && input.weights.empty()) {
    GatherRows(input, dim, rows.data(), cells.data());
    return;
  }
  for (size_t c = 0; c < CellCount(input); ++c) {
    const size_t begin = input.offsets.empty() ? c : input.offsets[c];
    const size_t end = input.offsets.empty() ? c + 1 : input.offsets[c + 1];
    PoolCell(input, dim, rows.data(), begin, end, cells.data() + c * dim);
  }
}

void MergeGradients(const SparseInput& input, int dim, absl::Span<const float> pooled_gradients,
                    absl::Span<float* const> row_gradients) {
  CheckShape(input, dim, row_gradients.size(), pooled_gradients.size());
  // Keys are in order of first occurrence. Occurrence o is therefore the first one of its key
  // exactly if its index equals the number of keys met so far. The first occurrence assigns, later
  // ones add.
  size_t met = 0;
  for (size_t c = 0; c < CellCount(input); ++c) {
    const float* from = pooled_gradients.data() + c * dim;
    const size_t begin = input.offsets.empty() ? c : input.offsets[c];
    const size_t end = input.offsets.empty() ? c + 1 : input.offsets[c + 1];
    for (size_t o = begin; o < end; ++o) {
      float* const to = row_gradients[input.index[o]];
      if (input.index[o] == met) {
        ++met;
        input.weights.empty() ? void(std::copy_n(from, dim, to))
                              : Scale(input.weights[o], from, dim, to);
      } else if (input.weights.empty()) {
        Add(from, dim, to);
      } else {
        AddScaled(input.weights[o], from, dim, to);
      }
    }
  }
  TANDEM_CHECK(met == input.keys.size());
}

}  // namespace tandem::data
