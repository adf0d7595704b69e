// Dense parameters whose optimizer knows their shapes: MUON on a matrix beside other parameters,
// and what a checkpoint keeps of it.
#include "worker/dense/dense_parameters.h"

#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Parameters = std::vector<server::CheckpointParameter>;

// A cube, a matrix over a border of blocks, and a vector: two blocks, the last one padded.
const Parameters& Shapes() {
  static const auto* const shapes =
      new Parameters{{"cube", {10, 10, 8}}, {"matrix", {20, 40}}, {"bias", {20}}};
  return *shapes;
}
constexpr int64_t kFloats = 800 + 800 + 20;

Optimizer Config(Optimizer::Kind kind) {
  Optimizer config;
  config.set_kind(kind);
  config.set_learning_rate(0.01);
  return config;
}

std::unique_ptr<worker::DenseParameters> New(Optimizer::Kind kind) {
  return *worker::DenseParameters::New(Config(kind), kFloats, Shapes());
}

std::vector<float> Gradient(const worker::DenseParameters& dense, Random& random) {
  std::vector<float> gradient(static_cast<size_t>(dense.blocks() * job::kDenseBlockFloats));
  for (int64_t i = 0; i < kFloats; ++i) {
    gradient[static_cast<size_t>(i)] = static_cast<float>(random.Normal());
  }
  return gradient;
}

TEST(DenseParametersTest, MuonStepsParametersOfTwoDimensionsAlone) {
  const auto muon = New(Optimizer::MUON), adamw = New(Optimizer::ADAMW);
  Random random(TestSeed());
  for (int step = 0; step < 3; ++step) {
    const auto gradient = Gradient(*muon, random);
    muon->Apply(gradient, 0.5f);
    adamw->Apply(gradient, 0.5f);
  }
  const auto values = muon->values(), others = adamw->values();
  for (size_t i = 0; i < values.size(); ++i) {
    if (i >= 800 && i < 1600) {
      EXPECT_NE(values[i], others[i]) << i;
    } else {
      EXPECT_EQ(values[i], others[i]) << i;
    }
  }
  for (const float padding : muon->padded().subspan(kFloats)) EXPECT_EQ(padding, 0);
}

TEST(DenseParametersTest, ACheckpointOfMuonGoesOnWithItsBits) {
  const auto straight = New(Optimizer::MUON);
  Random random(TestSeed());
  for (int step = 0; step < 3; ++step) straight->Apply(Gradient(*straight, random), 1);
  const std::string file = straight->EncodeFile();
  const auto image =
      server::DecodeRange({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->optimizer, "muon");
  EXPECT_EQ(image->slots_per_row, 2 * job::kDenseBlockFloats + 1);
  const auto resumed = New(Optimizer::MUON);
  ASSERT_TRUE(resumed->Load(*image).ok());
  for (int step = 0; step < 3; ++step) {
    const auto gradient = Gradient(*straight, random);
    straight->Apply(gradient, 1);
    resumed->Apply(gradient, 1);
  }
  EXPECT_EQ(resumed->RowsWithSlots(), straight->RowsWithSlots());
}

TEST(DenseParametersTest, ParametersLieOneAfterAnother) {
  using collectives::Piece;
  EXPECT_THAT(New(Optimizer::SGD)->parameters(),
              ::testing::ElementsAre(Piece{0, 800}, Piece{800, 800}, Piece{1600, 20}));
  const auto without = *worker::DenseParameters::New(Config(Optimizer::SGD), kFloats);
  EXPECT_THAT(without->parameters(), ::testing::ElementsAre(Piece{0, kFloats}));
}

TEST(DenseParametersTest, MuonWithoutShapesIsRefused) {
  const auto made = worker::DenseParameters::New(Config(Optimizer::MUON), kFloats);
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(made.status().message()), ::testing::HasSubstr("needs the shapes"));
  EXPECT_TRUE(worker::DenseParameters::New(Config(Optimizer::MUON), 0).ok());
}

}  // namespace
}  // namespace tandem
