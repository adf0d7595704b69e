// Metrics against brute force, and the cases where a wrong definition flatters a model.
#include "data/metrics.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

struct Scored {
  std::vector<float> logits, labels;
};

// Scores on a coarse grid, so that many are equal.
Scored RandomScores(Random* random, size_t count, double grid) {
  Scored scored;
  for (size_t i = 0; i < count; ++i) {
    const bool positive = random->Bernoulli(0.3);
    const double x = random->Normal() + (positive ? 0.8 : 0);
    scored.logits.push_back(static_cast<float>(grid > 0 ? std::round(x / grid) * grid : x));
    scored.labels.push_back(positive ? 1.0f : 0.0f);
  }
  return scored;
}

double BruteForceAuc(const Scored& scored) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < scored.logits.size(); ++i) {
    for (size_t j = 0; j < scored.logits.size(); ++j) {
      if (scored.labels[i] != 1 || scored.labels[j] != 0) continue;
      pairs += 1;
      if (scored.logits[i] > scored.logits[j]) wins += 1;
      if (scored.logits[i] == scored.logits[j]) wins += 0.5;
    }
  }
  return wins / pairs;
}

TEST(AucTest, ExactAgreesWithAllPairs) {
  Random random(TestSeed());
  for (const double grid : {0.0, 0.1, 1.0}) {
    const Scored scored = RandomScores(&random, 700, grid);
    data::ScoreSample sample;
    sample.Add(scored.logits, scored.labels);
    EXPECT_NEAR(sample.ComputeAuc().value, BruteForceAuc(scored), 1e-12) << "grid " << grid;
    EXPECT_EQ(sample.ComputeAuc().error, 0);
  }
}

TEST(AucTest, ConstantIsHalfAndPerfectIsOne) {
  const std::vector<float> labels = {0, 1, 0, 1};
  const auto auc = [&](std::vector<float> logits) {
    data::ScoreSample sample;
    sample.Add(logits, labels);
    return sample.ComputeAuc().value;
  };
  EXPECT_EQ(auc({3, 3, 3, 3}), 0.5);
  EXPECT_EQ(auc({0.0f, -0.0f, 0.0f, -0.0f}), 0.5) << "the two zeros are equal";
  EXPECT_EQ(auc({-5, 1, -4, 2}), 1.0);
  EXPECT_EQ(auc({5, -1, 4, -2}), 0.0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(auc({nan, nan, nan, nan})));
}

TEST(AucTest, OneClassHasNone) {
  data::ScoreSample sample;
  EXPECT_TRUE(std::isnan(sample.ComputeAuc().value));
  const std::vector<float> logits = {1, 2}, labels = {1, 1};
  sample.Add(logits, labels);
  EXPECT_TRUE(std::isnan(sample.ComputeAuc().value));
}

// Past the bound the answer comes from bins; what it says about its error must hold.
TEST(AucTest, BinnedIsWithinItsStatedError) {
  Random random(TestSeed());
  const Scored scored = RandomScores(&random, 5000, 0);
  data::ScoreSample exact, binned(/*exact_scores=*/1000);
  exact.Add(scored.logits, scored.labels);
  for (size_t begin = 0; begin < scored.logits.size(); begin += 500) {
    binned.Add(absl::MakeConstSpan(scored.logits).subspan(begin, 500),
               absl::MakeConstSpan(scored.labels).subspan(begin, 500));
  }
  EXPECT_TRUE(binned.logits().empty());
  const data::ScoreSample::Auc auc = binned.ComputeAuc();
  EXPECT_GT(auc.error, 0);
  EXPECT_LT(auc.error, 1e-4);
  EXPECT_LE(std::abs(auc.value - exact.ComputeAuc().value), auc.error + 1e-12);
}

TEST(AucTest, PartsMergeToTheWhole) {
  Random random(TestSeed());
  const Scored a = RandomScores(&random, 800, 0.1), b = RandomScores(&random, 300, 0.1);
  data::ScoreSample whole;
  whole.Add(a.logits, a.labels);
  whole.Add(b.logits, b.labels);
  // 10,000: both exact; 500: one is binned, and binned meets exact in both orders.
  for (const size_t exact_scores : {10'000, 500}) {
    for (const bool swapped : {false, true}) {
      data::ScoreSample left(exact_scores), right(exact_scores);
      left.Add((swapped ? b : a).logits, (swapped ? b : a).labels);
      right.Add((swapped ? a : b).logits, (swapped ? a : b).labels);
      left.Merge(right);
      const data::ScoreSample::Auc auc = left.ComputeAuc();
      EXPECT_NEAR(auc.value, whole.ComputeAuc().value, auc.error + 1e-12);
      EXPECT_EQ(auc.error > 0, exact_scores == 500);
    }
  }
}

TEST(LoglossTest, AgreesWithTheDefinitionAndNeverOverflows) {
  for (const float x : {-3.0f, -0.1f, 0.0f, 2.0f}) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(x)));
    EXPECT_NEAR(data::Logloss(x, 1), -std::log(p), 1e-12);
    EXPECT_NEAR(data::Logloss(x, 0), -std::log(1 - p), 1e-12);
  }
  EXPECT_EQ(data::Logloss(1e30f, 1), 0);
  EXPECT_FLOAT_EQ(data::Logloss(1e30f, 0), 1e30f);
  EXPECT_FLOAT_EQ(data::Logloss(-1e30f, 1), 1e30f);
}

data::Batch SampleBatch(const Scored& scored) {
  data::Batch batch;
  batch.samples = static_cast<int64_t>(scored.labels.size());
  batch.labels = scored.labels;
  return batch;
}

TEST(EvaluationTest, SamplesAverageOverParts) {
  const Scored a = {{2, -1, 0}, {1, 1, 0}}, b = {{-4}, {0}};
  data::EvaluationPart part, other;
  data::AddBatch(SampleBatch(a), a.logits, 10, &part);
  data::AddBatch(SampleBatch(b), b.logits, 10, &other);
  part.Merge(other);
  const data::EvaluationResult result = data::Summarise(part);
  EXPECT_EQ(result.samples, 4);
  EXPECT_EQ(result.groups, 0);
  EXPECT_DOUBLE_EQ(result.accuracy, 0.75);
  EXPECT_NEAR(
      result.logloss,
      (data::Logloss(2, 1) + data::Logloss(-1, 1) + data::Logloss(0, 0) + data::Logloss(-4, 0)) / 4,
      1e-12);
  EXPECT_DOUBLE_EQ(result.auc.value, 0.75);
  EXPECT_NEAR(result.normalised_entropy, result.logloss / std::log(2.0), 1e-12);
  const auto probability = [](double logit) { return 1 / (1 + std::exp(-logit)); };
  EXPECT_NEAR(result.calibration,
              (probability(2) + probability(-1) + probability(0) + probability(-4)) / 2, 1e-12);
}

TEST(EvaluationTest, MeasuresThatNeedBothLabelsAreNanWithoutThem) {
  const auto with_labels = [](float label) {
    data::EvaluationPart part;
    const Scored one = {{2, -1}, {label, label}};
    data::AddBatch(SampleBatch(one), one.logits, 10, &part);
    return data::Summarise(part);
  };
  const data::EvaluationResult zeros = with_labels(0), ones = with_labels(1);
  EXPECT_TRUE(std::isnan(zeros.normalised_entropy) && std::isnan(ones.normalised_entropy));
  EXPECT_TRUE(std::isnan(zeros.calibration));
  EXPECT_NEAR(ones.calibration, (1 / (1 + std::exp(-2.0)) + 1 / (1 + std::exp(1.0))) / 2, 1e-12);
}

TEST(EvaluationTest, NothingIsZeroNotNan) {
  const data::EvaluationResult result = data::Summarise(data::EvaluationPart());
  EXPECT_EQ(result.logloss, 0);
  EXPECT_EQ(result.hit_rate, 0);
}

// Rank of the positive by sorting, ties against it.
size_t BruteForceRank(float positive, std::vector<float> candidates) {
  std::sort(candidates.begin(), candidates.end(), std::greater<float>());
  size_t rank = 0;
  while (rank < candidates.size() && candidates[rank] >= positive) ++rank;
  return rank;
}

TEST(RankingTest, AgreesWithSorting) {
  Random random(TestSeed());
  data::Batch batch;
  std::vector<float> logits;
  double hits = 0, ndcg = 0;
  const int groups = 200, top_k = 5;
  for (int g = 0; g < groups; ++g) {
    const size_t candidates = 1 + random.Uniform(30);
    batch.groups.push_back(static_cast<uint32_t>(candidates + 1));
    std::vector<float> scores;
    for (size_t i = 0; i <= candidates; ++i)
      scores.push_back(static_cast<float>(random.Uniform(20)));
    logits.insert(logits.end(), scores.begin(), scores.end());
    const size_t rank = BruteForceRank(scores[0], {scores.begin() + 1, scores.end()});
    if (rank < top_k) hits += 1;
    if (rank < top_k) ndcg += std::log(2.0) / std::log(rank + 2.0);
  }
  batch.samples = static_cast<int64_t>(logits.size());
  data::EvaluationPart part;
  data::AddBatch(batch, logits, top_k, &part);
  const data::EvaluationResult result = data::Summarise(part);
  EXPECT_EQ(result.groups, groups);
  EXPECT_EQ(result.samples, 0) << "groups are ranked, not averaged";
  EXPECT_DOUBLE_EQ(result.hit_rate, hits / groups);
  EXPECT_NEAR(result.ndcg, ndcg / groups, 1e-12);
}

TEST(RankingTest, AConstantModelAndANanScoreNothing) {
  data::Batch batch;
  batch.samples = 22;
  batch.groups = {11, 11};
  data::EvaluationPart part;
  data::AddBatch(batch, std::vector<float>(22, 0.5f), 10, &part);
  EXPECT_EQ(data::Summarise(part).hit_rate, 0);
  EXPECT_EQ(data::Summarise(part).ndcg, 0);
  data::AddBatch(batch, std::vector<float>(22, std::numeric_limits<float>::quiet_NaN()), 10, &part);
  EXPECT_EQ(data::Summarise(part).hit_rate, 0);
}

TEST(RunningAucTest, IsCloseToTheExactOne) {
  Random random(TestSeed());
  const Scored scored = RandomScores(&random, 20'000, 0);
  data::RunningAuc running;
  EXPECT_TRUE(std::isnan(running.Estimate()));
  running.Add(scored.logits, scored.labels);
  data::ScoreSample sample;
  sample.Add(scored.logits, scored.labels);
  EXPECT_NEAR(running.Estimate(), sample.ComputeAuc().value, 1e-3);
  running.Reset();
  EXPECT_TRUE(std::isnan(running.Estimate())) << "rows before it count no more";
  const std::vector<float> extreme = {1e30f, -1e30f}, labels = {1, 0};
  running.Add(extreme, labels);
  EXPECT_EQ(running.Estimate(), 1.0);
}

}  // namespace
}  // namespace tandem
