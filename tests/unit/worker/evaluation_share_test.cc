// What workers send of an evaluation says the same once it is merged, and nothing is reported that
// is not so.
#include "worker/evaluation_share.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr int kTopK = 10;

data::Batch BatchOf(const std::vector<float>& labels) {
  data::Batch batch;
  batch.samples = static_cast<int64_t>(labels.size());
  batch.labels = labels;
  return batch;
}

data::EvaluationPart PartOf(const std::vector<float>& logits, const std::vector<float>& labels) {
  data::EvaluationPart part;
  data::AddBatch(BatchOf(labels), logits, kTopK, &part);
  return part;
}

class EvaluationShareTest : public ::testing::Test {
 protected:
  void Add(const data::EvaluationPart& part) {
    const int rank = static_cast<int>(shares_.size());
    worker::EncodeShare(part, buffers_, &shares_[rank], &payloads_[rank]);
  }
  nlohmann::json Merged() {
    const absl::StatusOr<std::string> text = worker::MergeShares(shares_, payloads_, kTopK);
    EXPECT_TRUE(text.ok()) << text.status();
    return nlohmann::json::parse(text.value_or("null"));
  }

  HeapBufferSource buffers_;
  std::map<int, EvaluationShare> shares_;
  std::map<int, Buffer> payloads_;
};

TEST_F(EvaluationShareTest, PartsSayTogetherWhatTheWholeSays) {
  Add(PartOf({2, -1}, {1, 0}));
  Add(PartOf({0.5f, 3, -2}, {0, 1, 1}));
  const data::EvaluationResult want =
      data::Summarise(PartOf({2, -1, 0.5f, 3, -2}, {1, 0, 0, 1, 1}));
  const nlohmann::json merged = Merged();
  EXPECT_EQ(merged["samples"], 5);
  EXPECT_DOUBLE_EQ(merged["logloss"].get<double>(), want.logloss);
  EXPECT_DOUBLE_EQ(merged["normalised_entropy"].get<double>(), want.normalised_entropy);
  EXPECT_DOUBLE_EQ(merged["calibration"].get<double>(), want.calibration);
  EXPECT_DOUBLE_EQ(merged["accuracy"].get<double>(), want.accuracy);
  EXPECT_DOUBLE_EQ(merged["auc"].get<double>(), want.auc.value);
  EXPECT_FALSE(merged.contains("groups"));
}

// One of them is enough: measures of the others would be taken for those of all.
TEST_F(EvaluationShareTest, RowsWithoutLabelsHaveNoMeasure) {
  const float none = std::numeric_limits<float>::quiet_NaN();
  Add(PartOf({2, -1}, {1, 0}));
  Add(PartOf({0.5f, 3, -2}, {0, none, 1}));
  EXPECT_EQ(Merged(), nlohmann::json({{"samples", 5}, {"unlabelled", 1}}));
  Add(PartOf({none, 1}, {none, none}));
  EXPECT_EQ(Merged(),
            nlohmann::json({{"samples", 7}, {"unlabelled", 3}, {"scores_not_finite", true}}));
}

TEST_F(EvaluationShareTest, TheBaseIsTheLoglossOfTheShareOfOnes) {
  Add(PartOf({2, -1}, {1, 0}));
  Add(PartOf({2, -1}, {0, 0}));
  EXPECT_NEAR(Merged()["base_logloss"].get<double>(),
              -0.25 * std::log(0.25) - 0.75 * std::log(0.75), 1e-12);
  shares_.clear();
  Add(PartOf({2, -1}, {1, 1}));
  EXPECT_EQ(Merged()["base_logloss"], 0.0);
  EXPECT_FALSE(Merged().contains("normalised_entropy")) << "of one class";
  EXPECT_TRUE(Merged().contains("calibration"));
  shares_.clear();
  Add(PartOf({2, -1}, {0, 0}));
  EXPECT_FALSE(Merged().contains("calibration")) << "no ones";
}

TEST_F(EvaluationShareTest, CountsInBinsTravelToo) {
  data::EvaluationPart binned;
  binned.sums.samples = 2;
  std::vector<uint64_t> positives(data::kAucBins, 0), negatives(data::kAucBins, 0);
  positives[9] = negatives[3] = 1;
  binned.scores.AddBins(positives, negatives);
  Add(binned);
  Add(data::EvaluationPart());
  EXPECT_EQ(Merged()["auc"], 1.0);
}

TEST_F(EvaluationShareTest, NoMeasureStandsBesideScoresThatAreNotFinite) {
  for (const float score :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    shares_.clear();
    payloads_.clear();
    Add(PartOf({2, score, -1, score}, {1, 0, 0, 1}));
    const nlohmann::json merged = Merged();
    EXPECT_EQ(merged["samples"], 4);
    EXPECT_EQ(merged["scores_not_finite"], true);
    for (const char* measure : {"logloss", "auc", "accuracy", "calibration"}) {
      EXPECT_FALSE(merged.contains(measure)) << merged.dump();
    }
  }
}

TEST_F(EvaluationShareTest, AShareOfAnotherSizeIsRefusedByRank) {
  for (const bool binned : {false, true}) {
    shares_.clear();
    payloads_.clear();
    Add(PartOf({1}, {1}));
    shares_[1].set_binned(binned);
    payloads_[1] = buffers_.Alloc(12);
    const absl::StatusOr<std::string> text = worker::MergeShares(shares_, payloads_, kTopK);
    EXPECT_THAT(text.status().ToString(), HasSubstr("evaluation share of worker 1: 12 bytes"));
  }
}

}  // namespace
}  // namespace tandem
