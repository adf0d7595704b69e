// The tridiagonal quadratic (tools/sim/quadratic.h): its loss and gradient are those of the dense
// matrix, in double, and its least loss is that of the solved system.
#include "tools/sim/quadratic.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Vector = std::vector<double>;

// A and b as the papers write them.
struct Dense {
  explicit Dense(size_t d) : a(d, Vector(d)), b(d) {
    for (size_t i = 0; i < d; ++i) {
      a[i][i] = 0.5;
      if (i > 0) a[i][i - 1] = a[i - 1][i] = -0.25;
    }
    b[0] = -0.25;
  }
  double Value(const Vector& x) const {
    double value = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) value += a[i][j] * x[i] * x[j] / 2;
      value -= b[i] * x[i];
    }
    return value;
  }
  Vector Gradient(const Vector& x) const {
    Vector gradient(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      gradient[i] = -b[i];
      for (size_t j = 0; j < x.size(); ++j) gradient[i] += a[i][j] * x[j];
    }
    return gradient;
  }
  // Solves A x = b by Gaussian elimination with pivots.
  Vector Minimum() const {
    std::vector<Vector> rows = a;
    Vector x = b;
    const size_t d = b.size();
    for (size_t k = 0; k < d; ++k) {
      size_t pivot = k;
      for (size_t i = k; i < d; ++i) {
        if (std::abs(rows[i][k]) > std::abs(rows[pivot][k])) pivot = i;
      }
      std::swap(rows[k], rows[pivot]);
      std::swap(x[k], x[pivot]);
      for (size_t i = k + 1; i < d; ++i) {
        const double factor = rows[i][k] / rows[k][k];
        for (size_t j = k; j < d; ++j) rows[i][j] -= factor * rows[k][j];
        x[i] -= factor * x[k];
      }
    }
    for (size_t k = d; k-- > 0;) {
      for (size_t j = k + 1; j < d; ++j) x[k] -= rows[k][j] * x[j];
      x[k] /= rows[k][k];
    }
    return x;
  }
  std::vector<Vector> a;
  Vector b;
};

TEST(TridiagonalTest, IsTheDenseQuadratic) {
  Random random(TestSeed());
  for (const size_t d : {1, 2, 3, 17, 64}) {
    const Dense dense(d);
    const double least = dense.Value(dense.Minimum());
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<float> x(d);
      for (float& value : x) value = static_cast<float>(3 * random.Normal());
      if (repeat == 0) x.assign(d, 0.0f);
      const Vector exact(x.begin(), x.end());
      Vector gradient(d);
      const double loss = sim::TridiagonalLoss(x, absl::MakeSpan(gradient));
      EXPECT_NEAR(loss, dense.Value(exact) - least, 1e-11 * (1 + loss)) << d;
      const Vector want = dense.Gradient(exact);
      for (size_t i = 0; i < d; ++i) EXPECT_NEAR(gradient[i], want[i], 1e-12) << d << " " << i;
    }
  }
}

// Near the minimum too few digits of f(x) and min f differ, and the loss has all of its own.
TEST(TridiagonalTest, IsNothingAtTheMinimum) {
  for (const size_t d : {1, 5, 64}) {
    const Vector minimum = Dense(d).Minimum();
    const std::vector<float> x(minimum.begin(), minimum.end());
    Vector gradient(d);
    const double loss = sim::TridiagonalLoss(x, absl::MakeSpan(gradient));
    EXPECT_GE(loss, 0);
    EXPECT_LT(loss, 1e-12);
    for (const double one : gradient) EXPECT_NEAR(one, 0, 1e-7);
  }
}

}  // namespace
}  // namespace tandem
