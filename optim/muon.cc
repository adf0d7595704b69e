// Muon (Jordan et al. 2024) for the matrices among the dense parameters, as torch.optim.Muon takes
// steps with adjust_lr_fn "match_rms_adamw" (Liu et al. 2025):
//   m += (1 - momentum) (g - m)
//   u = g + momentum (m - g), which is Nesterov's momentum
//   w -= rate * (0.2 sqrt(max(rows, cols)) orthogonalised(u) + weight_decay w)
// torch orthogonalises in bfloat16, and this one in floats. All elements outside the matrices take
// one step of ADAMW together, as one row. clip_norm shortens the gradient of each matrix, and that
// of this row.
//
// Slots of a block: m[dim]; v[dim], which the elements of matrices do not use; and the steps so
// far, which are the same in all blocks.
//
// All workers must get the same bits from the same sums, whatever their processors. So the products
// are computed here, in one order, and not by a library that has code for each processor.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "optim/kinds.h"

namespace tandem::optim {
namespace {

using Eight = float __attribute__((vector_size(32)));

constexpr int kPanel = 16;  // columns of a product that are computed together
constexpr int kRows = 4;    // rows of a product that are computed together

// A matrix of another one's elements: element (i, j) is at data[i * row + j * col].
struct MatrixView {
  const float* data;
  int64_t row, col;
};

// c[i][0 .. kPanel) for kCount rows of c, which are n apart: each element is the sum of its k
// products in the order of k.
template <int kCount>
inline void MultiplyRows(const float* a, int64_t k, const float* panel, float* c) {
  Eight sum[kCount][2] = {};
  for (int64_t p = 0; p < k; ++p) {
    Eight b[2];
    std::memcpy(b, panel + p * kPanel, sizeof(b));
    for (int i = 0; i < kCount; ++i) {
      const float x = a[i * k + p];
      sum[i][0] += x * b[0];
      sum[i][1] += x * b[1];
    }
  }
  std::memcpy(c, sum, sizeof(sum));
}

// c = a b, where a is [n, k], b is [k, m] and c is [n, m], all row by row but b. `symmetric`: c is
// equal to its transpose. The terms of both halves are the same, so one half is computed.
void Multiply(int64_t n, int64_t k, int64_t m, const float* a, const MatrixView& b, bool symmetric,
              float* c) {
  std::vector<float> panel(static_cast<size_t>(k * kPanel));
  for (int64_t first = 0; first < m; first += kPanel) {
    const int64_t width = std::min<int64_t>(kPanel, m - first);
    for (int64_t p = 0; p < k; ++p) {
      const float* const from = b.data + p * b.row + first * b.col;
      for (int64_t j = 0; j < width; ++j) {
        panel[static_cast<size_t>(p * kPanel + j)] = from[j * b.col];
      }
    }
    for (int64_t i = symmetric ? first : 0; i < n;) {
      std::array<float, kRows * kPanel> tile;
      const bool whole = i + kRows <= n;
      if (whole) {
        MultiplyRows<kRows>(a + i * k, k, panel.data(), tile.data());
      } else {
        MultiplyRows<1>(a + i * k, k, panel.data(), tile.data());
      }
      const int64_t end = i + (whole ? kRows : 1);
      for (const float* from = tile.data(); i < end; ++i, from += kPanel) {
        std::copy_n(from, width, c + i * m + first);
      }
    }
  }
  if (!symmetric) return;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) c[i * n + j] = c[j * n + i];
  }
}

float SquareSum(int64_t rows, int64_t cols, const float* x) {
  float sum = 0;
  for (int64_t i = 0; i < rows; ++i, x += cols) {
    sum += LaneSum(static_cast<int>(cols), [x](int j) { return x[j] * x[j]; });
  }
  return sum;
}

// Brings the singular values of x [n, k], n <= k, near 1 by five steps of the Newton-Schulz
// iteration with the coefficients of Jordan et al.
void Orthogonalise(int64_t n, int64_t k, std::vector<float>* x) {
  constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
  constexpr int kSteps = 5;
  const float norm = std::max(std::sqrt(SquareSum(n, k, x->data())), 1e-7f);
  for (float& value : *x) value /= norm;
  const auto square = static_cast<size_t>(n * n);
  std::vector<float> gram(square), gram_square(square), product(x->size());
  for (int step = 0; step < kSteps; ++step) {
    Multiply(n, k, n, x->data(), {x->data(), 1, k}, true, gram.data());
    Multiply(n, n, n, gram.data(), {gram.data(), n, 1}, true, gram_square.data());
    for (size_t i = 0; i < square; ++i) gram[i] = kB * gram[i] + kC * gram_square[i];
    Multiply(n, n, k, gram.data(), {x->data(), k, 1}, false, product.data());
    for (size_t i = 0; i < x->size(); ++i) (*x)[i] = kA * (*x)[i] + product[i];
  }
}

std::vector<float> Transposed(int64_t rows, int64_t cols, const std::vector<float>& x) {
  std::vector<float> result(x.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      result[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * cols + j)];
    }
  }
  return result;
}

// A flat buffer in blocks of `dim` floats, block b at blocks[b] + shift.
struct Blocks {
  absl::Span<float* const> blocks;
  int dim;
  int64_t shift;

  // Calls part(pointer, n) for the pieces of [offset, offset + size) that are each in one block.
  template <typename Part>
  void ForEach(int64_t offset, int64_t size, Part part) const {
    for (const int64_t end = offset + size; offset < end;) {
      const int64_t at = offset % dim, n = std::min(end - offset, dim - at);
      part(blocks[static_cast<size_t>(offset / dim)] + shift + at, n);
      offset += n;
    }
  }
  void Read(int64_t offset, int64_t size, float* to) const {
    ForEach(offset, size, [&to](const float* from, int64_t n) { to = std::copy_n(from, n, to); });
  }
  void Write(int64_t offset, int64_t size, const float* from) const {
    ForEach(offset, size, [&from](float* to, int64_t n) {
      std::copy_n(from, n, to);
      from += n;
    });
  }
};

class Muon final : public RowOptimizer {
 public:
  Muon(const OptimizerSettings& settings, std::unique_ptr<RowOptimizer> adamw,
       std::vector<MatrixPlace> matrices)
      : settings_(settings), adamw_(std::move(adamw)), matrices_(std::move(matrices)) {}

  std::string name() const override { return "muon"; }
  int slots_per_row(int dim) const override { return adamw_->slots_per_row(dim); }
  void InitSlots(int dim, absl::Span<float> slots) const override { adamw_->InitSlots(dim, slots); }

  void Apply(int dim, float scale, const OptimizerStep& step, absl::Span<const float> gradients,
             absl::Span<float* const> rows, absl::Span<float* const> slots) const override {
    if (rows.empty()) return;
    ApplyAdamW(dim, scale, step, gradients, rows, slots);
    const Blocks weights = {rows, dim, 0}, momentum = {slots, dim, 0};
    for (const MatrixPlace& matrix : matrices_) {
      ApplyMuon(matrix, scale, step.rate, gradients.data() + matrix.offset, weights, momentum);
    }
  }

 private:
  // Steps the elements outside the matrices, and counts the step.
  void ApplyAdamW(int dim, float scale, const OptimizerStep& step,
                  absl::Span<const float> gradients, absl::Span<float* const> rows,
                  absl::Span<float* const> slots) const {
    const Blocks weights = {rows, dim, 0}, first = {slots, dim, 0}, second = {slots, dim, dim};
    std::vector<std::pair<int64_t, int64_t>> pieces;  // offset and size
    int64_t end = 0, count = 0;
    const auto add_until = [&](int64_t begin) {
      if (begin > end) pieces.emplace_back(end, begin - end);
      count += begin - end;
    };
    for (const MatrixPlace& matrix : matrices_) {
      add_until(matrix.offset);
      end = matrix.offset + matrix.rows * matrix.cols;
    }
    add_until(static_cast<int64_t>(gradients.size()));
    std::vector<float> g, w(static_cast<size_t>(count)), state(static_cast<size_t>(2 * count + 1));
    float* const row = w.data();
    float* const moments = state.data();
    float* const steps = moments + 2 * count;
    int64_t at = 0;
    for (const auto& [offset, size] : pieces) {
      const float* const from = gradients.data() + offset;
      g.insert(g.end(), from, from + size);
      weights.Read(offset, size, row + at);
      first.Read(offset, size, moments + at);
      second.Read(offset, size, moments + count + at);
      at += size;
    }
    *steps = slots[0][2 * dim];
    adamw_->Apply(static_cast<int>(count), scale, step, g, {&row, 1}, {&moments, 1});
    at = 0;
    for (const auto& [offset, size] : pieces) {
      weights.Write(offset, size, row + at);
      first.Write(offset, size, moments + at);
      second.Write(offset, size, moments + count + at);
      at += size;
    }
    for (float* const slot : slots) slot[2 * dim] = *steps;
  }

  void ApplyMuon(const MatrixPlace& matrix, float scale, float rate_factor, const float* gradient,
                 const Blocks& weights, const Blocks& momentum) const {
    const int64_t rows = matrix.rows, cols = matrix.cols, size = rows * cols;
    const auto count = static_cast<size_t>(size);
    std::vector<float> w(count), m(count), u(gradient, gradient + size);
    weights.Read(matrix.offset, size, w.data());
    momentum.Read(matrix.offset, size, m.data());
    for (float& g : u) g *= scale;
    const float clip_norm = settings_.gradient.clip_norm;
    const float norm = clip_norm > 0 ? std::sqrt(SquareSum(rows, cols, u.data())) : 0;
    const float clip = norm > clip_norm ? clip_norm / norm : 1;
    for (size_t i = 0; i < count; ++i) {
      const float g = u[i] * clip;
      m[i] += (1 - settings_.momentum) * (g - m[i]);
      u[i] = g + settings_.momentum * (m[i] - g);
    }
    momentum.Write(matrix.offset, size, m.data());
    if (rows > cols) u = Transposed(rows, cols, u);
    Orthogonalise(std::min(rows, cols), std::max(rows, cols), &u);
    if (rows > cols) u = Transposed(cols, rows, u);
    const float rate = settings_.learning_rate * rate_factor;
    const float decay = rate * settings_.decoupled_decay;
    const float scaled = rate * (0.2f * std::sqrt(static_cast<float>(std::max(rows, cols))));
    for (size_t i = 0; i < count; ++i) w[i] -= scaled * u[i] + decay * w[i];
    weights.Write(matrix.offset, size, w.data());
  }

  const OptimizerSettings settings_;
  const std::unique_ptr<RowOptimizer> adamw_;
  const std::vector<MatrixPlace> matrices_;
};

}  // namespace

std::unique_ptr<RowOptimizer> NewMuon(const OptimizerSettings& settings,
                                      absl::Span<const MatrixPlace> matrices) {
  int64_t end = 0;
  for (const MatrixPlace& matrix : matrices) {
    TANDEM_CHECK(matrix.offset >= end && matrix.rows > 0 && matrix.cols > 0);
    end = matrix.offset + matrix.rows * matrix.cols;
  }
  return std::make_unique<Muon>(settings, NewAdam(settings, Optimizer::ADAMW, Optimizer::ROW),
                                std::vector<MatrixPlace>(matrices.begin(), matrices.end()));
}

}  // namespace tandem::optim
