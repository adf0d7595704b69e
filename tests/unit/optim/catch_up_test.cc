// Rows that make up for the steps that they missed, beside torch's dense Adam and its formula in
// double precision. Reading a row has no influence on its bits.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "tests/source_path.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

Optimizer Config(double learning_rate = 0.01) {
  Optimizer config;
  config.set_kind(Optimizer::ADAM);
  config.set_step_count(Optimizer::TABLE);
  config.set_catch_up(true);
  config.set_learning_rate(learning_rate);
  return config;
}

std::vector<float> RandomFloats(Random& random, size_t count) {
  std::vector<float> values(count);
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

// A stored row.
class Row {
 public:
  Row(const optim::RowOptimizer& optimizer, std::vector<float> weights)
      : optimizer_(optimizer), dim_(static_cast<int>(weights.size())), w_(std::move(weights)) {
    slots_.resize(static_cast<size_t>(optimizer.slots_per_row(dim_)));
    optimizer.InitSlots(dim_, absl::MakeSpan(slots_));
  }

  void Apply(int64_t step, const std::vector<float>& gradient, float scale = 1) {
    float* const w = w_.data();
    float* const slots = slots_.data();
    optimizer_.Apply(dim_, scale, {.number = step}, gradient, {&w, 1}, {&slots, 1});
  }
  std::vector<float> Read(int64_t now) const {
    std::vector<float> out(w_.size());
    optimizer_.CatchUp(dim_, now, w_.data(), slots_.data(), out.data(), nullptr);
    return out;
  }
  void Write(int64_t now) {
    optimizer_.CatchUp(dim_, now, w_.data(), slots_.data(), w_.data(), slots_.data());
  }

  std::vector<float>& weights() { return w_; }
  std::vector<float>& slots() { return slots_; }
  void SetLast(uint32_t step) { std::memcpy(&slots_.back(), &step, sizeof step); }
  uint32_t last() const {
    uint32_t step;
    std::memcpy(&step, &slots_.back(), sizeof step);
    return step;
  }

 private:
  const optim::RowOptimizer& optimizer_;
  const int dim_;
  std::vector<float> w_, slots_;
};

// Weights of torch 1.13: torch.optim.Adam([w], lr=.01), w = ones(3, 1), 330 steps. The gradient of
// step t is g = ((7 t) mod 11 - 5) size: in each step for row 0, in steps 17, 34, ... for row 1, in
// steps 5 and 200 for row 2, and 0 in all others. The small size is below epsilon.
TEST(CatchUpTest, RowsHaveTheWeightsOfTorchsDenseAdam) {
  const struct {
    double size;
    int64_t step;
    std::vector<float> weights;
  } kFigures[] = {{1, 7, {0.971171081f, 1.0f, 1.01426208f}},
                  {1, 60, {0.965578556f, 0.919726908f, 1.05138218f}},
                  {1, 199, {0.965341389f, 0.996818125f, 1.05161405f}},
                  {1, 207, {0.963478088f, 0.989927769f, 1.0974046f}},
                  {1, 330, {0.964707136f, 0.911566734f, 1.13331676f}},
                  {0x1p-28, 7, {0.985637486f, 1.0f, 1.00451255f}},
                  {0x1p-28, 60, {0.982652724f, 0.981956661f, 1.01281202f}},
                  {0x1p-28, 199, {0.98252362f, 0.99565208f, 1.0128386f}},
                  {0x1p-28, 207, {0.981515646f, 0.994013131f, 1.01672208f}},
                  {0x1p-28, 330, {0.982179284f, 0.975888252f, 1.01966608f}}};
  const auto optimizer = *optim::NewRowOptimizer(Config());
  for (const double size : {1.0, 0x1p-28}) {
    std::vector<Row> rows(3, Row(*optimizer, {1.0f}));
    for (int64_t step = 1; step <= 330; ++step) {
      const std::vector<float> g = {
          static_cast<float>(static_cast<double>(step * 7 % 11 - 5) * size)};
      rows[0].Apply(step, g);
      if (step % 17 == 0) rows[1].Apply(step, g);
      if (step == 5 || step == 200) rows[2].Apply(step, g);
      for (const auto& figure : kFigures) {
        if (figure.size != size || figure.step != step) continue;
        for (size_t i = 0; i < rows.size(); ++i) {
          EXPECT_NEAR(rows[i].Read(step)[0], figure.weights[i], 3e-6)
              << "row " << i << ", step " << step << ", gradients of " << size;
        }
      }
    }
  }
}

// The same file is read by tests/python/checkpoints.py.
TEST(CatchUpTest, RowsAreThoseOfTheSharedFile) {
  const std::string path = SourcePath("tests/testdata/catch_up.txt");
  const auto text = ReadWholeFile(path);
  ASSERT_TRUE(text.ok()) << text.status();
  int rows = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    if (line.front() == '#') continue;
    std::vector<double> x;
    for (absl::string_view word : absl::StrSplit(line, ' ')) {
      ASSERT_TRUE(absl::SimpleAtod(word, &x.emplace_back())) << line;
    }
    ASSERT_EQ(x.size(), 10u) << line;
    Optimizer config = Config(x[0]);
    config.set_beta1(x[1]);
    config.set_beta2(x[2]);
    config.set_epsilon(x[3]);
    const auto optimizer = *optim::NewRowOptimizer(config);
    Row row(*optimizer, {static_cast<float>(x[6])});
    row.slots() = {static_cast<float>(x[7]), static_cast<float>(x[8]), 0};
    row.SetLast(static_cast<uint32_t>(x[4]));
    EXPECT_NEAR(row.Read(static_cast<int64_t>(x[5]))[0], x[9], 2e-6) << line;
    ++rows;
  }
  EXPECT_EQ(rows, 40);
}

// Rows of all frequencies and lengths. A row that is read, even by each step, has the bits of one
// that is not. Clipping concerns the gradient alone.
TEST(CatchUpTest, RareAndFrequentRowsFollowTheFormulaWhateverIsRead) {
  constexpr int64_t kSteps = 500;
  for (const int dim : {1, 3, 8, 16, 20, 64}) {
    for (const double share : {0.5, 0.03, 0.004}) {
      SCOPED_TRACE(absl::StrCat("dim ", dim, ", share ", share, ", --seed=", TestSeed()));
      Optimizer config = Config(0.05);
      config.set_clip_norm(1.5);
      const auto optimizer = *optim::NewRowOptimizer(config);
      const size_t d = static_cast<size_t>(dim);
      Random random(TestSeed() + static_cast<uint64_t>(dim));
      const std::vector<float> first = RandomFloats(random, d);
      Row row(*optimizer, first), unread(*optimizer, first);
      std::vector<double> w(first.begin(), first.end()), m(d), v(d);
      double worst = 0;
      for (int64_t step = 1; step <= kSteps; ++step) {
        std::vector<float> g(d);
        if (random.NextDouble() < share) {
          g = RandomFloats(random, d);
          row.Apply(step, g, 0.5f);
          unread.Apply(step, g, 0.5f);
        }
        double norm = 0;
        for (const float x : g) norm += 0.25 * x * x;
        const double clip = norm > 1.5 * 1.5 ? 1.5 / std::sqrt(norm) : 1;
        const double t = static_cast<double>(step);
        for (size_t j = 0; j < d; ++j) {
          const double x = 0.5 * clip * g[j];
          m[j] = 0.9 * m[j] + 0.1 * x;
          v[j] = 0.999 * v[j] + 0.001 * x * x;
          w[j] -= 0.05 / (1 - std::pow(0.9, t)) * m[j] /
                  (std::sqrt(v[j] / (1 - std::pow(0.999, t))) + 1e-8);
        }
        const std::vector<float> read = row.Read(step);
        for (size_t j = 0; j < d; ++j) worst = std::max(worst, std::abs(read[j] - w[j]));
      }
      EXPECT_LT(worst, 1e-5);
      EXPECT_EQ(row.weights(), unread.weights());
      EXPECT_EQ(row.slots(), unread.slots());
    }
  }
}

// The bits of a row do not depend on the rows that share its call.
TEST(CatchUpTest, RowsThatShareACallHaveTheBitsOfRowsAlone) {
  const auto optimizer = *optim::NewRowOptimizer(Config());
  constexpr size_t kRows = 4, kDim = 16;
  Random random(TestSeed());
  std::vector<Row> together(kRows, Row(*optimizer, RandomFloats(random, kDim))), alone = together;
  for (int64_t step = 1; step <= 100; ++step) {
    const size_t count = 1 + static_cast<size_t>(step % 13 == 0 ? 3 : step % 2);
    const std::vector<float> g = RandomFloats(random, kRows * kDim);
    std::vector<float*> w, slots;
    for (size_t i = 0; i < count; ++i) {
      w.push_back(together[i].weights().data());
      slots.push_back(together[i].slots().data());
      alone[i].Apply(step, {g.begin() + static_cast<std::ptrdiff_t>(i * kDim),
                            g.begin() + static_cast<std::ptrdiff_t>((i + 1) * kDim)});
    }
    optimizer->Apply(kDim, 1, {.number = step}, absl::MakeConstSpan(g).first(count * kDim), w,
                     slots);
  }
  for (size_t i = 0; i < kRows; ++i) {
    EXPECT_EQ(together[i].weights(), alone[i].weights());
    EXPECT_EQ(together[i].slots(), alone[i].slots());
  }
}

// After 158 missed steps a row stands still, and its moments go on to decay.
TEST(CatchUpTest, ARowComesToRestAndItsMomentsDecay) {
  const auto optimizer = *optim::NewRowOptimizer(Config());
  Row row(*optimizer, {1.0f, 2.0f});
  row.Apply(10, {1.0f, -1.0f});
  EXPECT_EQ(row.last(), 10u);
  const std::vector<float> at_rest = row.Read(10 + 158);
  EXPECT_LT(at_rest[0], row.Read(11)[0]);
  EXPECT_GT(at_rest[1], row.Read(11)[1]);
  for (const int64_t now : {int64_t{10 + 159}, int64_t{5000}, int64_t{1} << 31}) {
    EXPECT_EQ(row.Read(now), at_rest) << now;
  }
  const float m = row.slots()[0], v = row.slots()[2];
  row.Write(10 + 300);
  EXPECT_EQ(row.weights(), at_rest);
  EXPECT_EQ(row.last(), 310u);
  EXPECT_NEAR(row.slots()[0] / (m * std::pow(0.9, 300)), 1, 1e-6);
  EXPECT_NEAR(row.slots()[2] / (v * std::pow(0.999, 300)), 1, 1e-6);
  row.Write(10 + 300);
  EXPECT_EQ(row.last(), 310u);
  row.Write(int64_t{1} << 31);  // as a float the step would be negative
  EXPECT_EQ(row.slots()[0], 0);
  EXPECT_EQ(row.slots()[2], 0);
  EXPECT_EQ(row.last(), uint32_t{1} << 31);
}

// A row that made up for some steps in writing makes up for the rest as one that did not.
TEST(CatchUpTest, AWrittenRowMovesOn) {
  const auto optimizer = *optim::NewRowOptimizer(Config());
  Row row(*optimizer, {1.0f, 2.0f});
  row.Apply(3, {1.0f, -1.0f});
  Row written = row;
  written.Write(20);
  for (const int64_t now : {20, 21, 60, 400}) {
    for (size_t j = 0; j < 2; ++j) EXPECT_NEAR(written.Read(now)[j], row.Read(now)[j], 1e-6);
  }
}

TEST(CatchUpTest, ARowWithoutAnUpdateStays) {
  const auto optimizer = *optim::NewRowOptimizer(Config());
  Row row(*optimizer, {1.0f, 2.0f});
  EXPECT_EQ(row.Read(1000), row.weights());
  row.Write(1000);
  EXPECT_EQ(row.last(), 0u);
  EXPECT_EQ(row.weights(), (std::vector<float>{1.0f, 2.0f}));
  row.Apply(1000, {1.0f, 1.0f});
  EXPECT_EQ(row.Read(999), row.weights()) << "a table that has lost its count";
}

// All other optimizers give the row as it is stored.
TEST(CatchUpTest, OtherOptimizersReadTheStoredRow) {
  Optimizer config = Config();
  EXPECT_EQ((*optim::NewRowOptimizer(config))->name(), "adam(catch_up)");
  EXPECT_EQ((*optim::NewRowOptimizer(config))->slots_per_row(16), 33);
  EXPECT_TRUE((*optim::NewRowOptimizer(config))->catches_up());
  config.set_catch_up(false);
  const auto optimizer = *optim::NewRowOptimizer(config);
  EXPECT_FALSE(optimizer->catches_up());
  Row row(*optimizer, {1.0f, 2.0f});
  row.Apply(3, {1.0f, -1.0f});
  Row written = row;
  written.Write(100);
  EXPECT_EQ(row.Read(100), row.weights());
  EXPECT_EQ(written.weights(), row.weights());
  EXPECT_EQ(written.slots(), row.slots());
}

TEST(CatchUpTest, SettingsUnderWhichMissedStepsWouldGrowAreRefused) {
  Optimizer config = Config();
  config.set_beta1(0.9);
  config.set_beta2(0.81);
  EXPECT_THAT(std::string(optim::NewRowOptimizer(config).status().message()),
              HasSubstr("beta1 is 0.9, must be below the root of beta2 (0.81) with catch_up"));
  config.set_beta2(0.82);
  EXPECT_TRUE(optim::NewRowOptimizer(config).ok());
  config.set_kind(Optimizer::SGD);
  EXPECT_THAT(std::string(optim::NewRowOptimizer(config).status().message()),
              HasSubstr("catch_up is only for kind ADAM"));
}

}  // namespace
}  // namespace tandem
