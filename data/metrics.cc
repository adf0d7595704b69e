#include "data/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace tandem::data {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Unsigned integers that have the order of the floats. -0 and 0 are one value.
uint32_t OrderedBits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0 ? 0.0f : x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// The predicted probability of label 1.
double Probability(float logit) { return 1.0 / (1.0 + std::exp(-static_cast<double>(logit))); }

// AUC from counts per bin, the lowest bin first. A pair in different bins is ordered. A pair in the
// same bin counts half, so its error is at most a half.
ScoreSample::Auc AucOfBins(absl::Span<const uint64_t> positives,
                           absl::Span<const uint64_t> negatives) {
  double all_positives = 0, below = 0, wins = 0, ties = 0;
  for (size_t b = 0; b < positives.size(); ++b) {
    const double p = static_cast<double>(positives[b]), n = static_cast<double>(negatives[b]);
    wins += p * below;
    ties += p * n;
    below += n;
    all_positives += p;
  }
  const double pairs = all_positives * below;
  if (pairs == 0) return {kNan, 0};
  return {(wins + ties / 2) / pairs, ties / 2 / pairs};
}

}  // namespace

void EvaluationSums::Merge(const EvaluationSums& other) {
  samples += other.samples;
  logloss_sum += other.logloss_sum;
  correct += other.correct;
  positives += other.positives;
  prediction_sum += other.prediction_sum;
  unlabelled += other.unlabelled;
  groups += other.groups;
  hit_sum += other.hit_sum;
  ndcg_sum += other.ndcg_sum;
}

void ScoreSample::Add(absl::Span<const float> logits, absl::Span<const float> labels) {
  TANDEM_CHECK(logits.size() == labels.size());
  for (const float logit : logits) has_nan_ |= std::isnan(logit);
  if (!binned() && logits_.size() + logits.size() > exact_scores_) UseBins();
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool positive = labels[i] > 0.5f;
    if (binned()) {
      CountInBin(logits[i], positive);
    } else {
      logits_.push_back(logits[i]);
      labels_.push_back(positive ? 1 : 0);
    }
  }
}

void ScoreSample::Merge(const ScoreSample& other) {
  has_nan_ |= other.has_nan_;
  if (other.binned()) AddBins(other.positive_bins_, other.negative_bins_);
  std::vector<float> labels(other.labels_.begin(), other.labels_.end());
  Add(other.logits_, labels);
}

void ScoreSample::AddBins(absl::Span<const uint64_t> positives,
                          absl::Span<const uint64_t> negatives) {
  TANDEM_CHECK(positives.size() == kAucBins && negatives.size() == kAucBins);
  if (!binned()) UseBins();
  for (size_t b = 0; b < kAucBins; ++b) {
    positive_bins_[b] += positives[b];
    negative_bins_[b] += negatives[b];
  }
}

void ScoreSample::UseBins() {
  positive_bins_.assign(kAucBins, 0);
  negative_bins_.assign(kAucBins, 0);
  for (size_t i = 0; i < logits_.size(); ++i) CountInBin(logits_[i], labels_[i] != 0);
  logits_ = {};
  labels_ = {};
}

void ScoreSample::CountInBin(float logit, bool positive) {
  if (std::isnan(logit)) return;
  const size_t bin = std::min(kAucBins - 1, static_cast<size_t>(Probability(logit) * kAucBins));
  ++(positive ? positive_bins_ : negative_bins_)[bin];
}

ScoreSample::Auc ScoreSample::ComputeAuc() const {
  if (has_nan_) return {kNan, 0};
  return binned() ? BinnedAuc() : ExactAuc();
}

ScoreSample::Auc ScoreSample::ExactAuc() const {
  // Sort by score. Each run of equal scores is a bin of its own, so ties count exactly half.
  std::vector<uint64_t> sorted(logits_.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    sorted[i] = uint64_t{OrderedBits(logits_[i])} << 1 | labels_[i];
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<uint64_t> positives, negatives;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i == 0 || sorted[i] >> 1 != sorted[i - 1] >> 1) {
      positives.push_back(0);
      negatives.push_back(0);
    }
    ++((sorted[i] & 1) != 0 ? positives : negatives).back();
  }
  return {AucOfBins(positives, negatives).value, 0};
}

ScoreSample::Auc ScoreSample::BinnedAuc() const {
  return AucOfBins(positive_bins_, negative_bins_);
}

void EvaluationPart::Merge(const EvaluationPart& other) {
  sums.Merge(other.sums);
  scores.Merge(other.scores);
}

double Logloss(float logit, float label) {
  const double x = logit;
  return std::max(x, 0.0) - x * label + std::log1p(std::exp(-std::fabs(x)));
}

size_t RankOfPositive(float positive, absl::Span<const float> candidates) {
  size_t rank = 0;
  // Not `>=`: if either score is NaN, the positive must not win.
  for (const float candidate : candidates) rank += candidate < positive ? 0 : 1;
  return rank;
}

namespace {

void AddSamples(const Batch& batch, absl::Span<const float> logits, EvaluationPart* part) {
  EvaluationSums& sums = part->sums;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float label = batch.labels[i];
    if (std::isnan(label)) {
      ++sums.unlabelled;
      // No label could make the loss finite.
      if (!std::isfinite(logits[i])) sums.logloss_sum = kNan;
      continue;
    }
    sums.logloss_sum += Logloss(logits[i], label);
    sums.correct += (logits[i] > 0) == (label > 0.5f) ? 1 : 0;
    sums.positives += label > 0.5f ? 1 : 0;
    sums.prediction_sum += Probability(logits[i]);
  }
  sums.samples += batch.samples;
  if (sums.unlabelled == 0) part->scores.Add(logits, batch.labels);
}

// The entropy in nats of a share; 0 for the shares 0 and 1.
double Entropy(double share) {
  if (share <= 0 || share >= 1) return 0;
  return -share * std::log(share) - (1 - share) * std::log1p(-share);
}

void AddGroups(const Batch& batch, absl::Span<const float> logits, int top_k,
               EvaluationSums* sums) {
  size_t begin = 0;
  for (const uint32_t size : batch.groups) {
    const size_t rank = RankOfPositive(logits[begin], logits.subspan(begin + 1, size - 1));
    if (rank < static_cast<size_t>(top_k)) {
      sums->hit_sum += 1;
      sums->ndcg_sum += std::log(2.0) / std::log(static_cast<double>(rank) + 2.0);
    }
    ++sums->groups;
    begin += size;
  }
  TANDEM_CHECK(begin == logits.size());
}

}  // namespace

void AddBatch(const Batch& batch, absl::Span<const float> logits, int top_k, EvaluationPart* part) {
  TANDEM_CHECK(logits.size() == static_cast<size_t>(batch.samples));
  if (batch.groups.empty()) {
    AddSamples(batch, logits, part);
  } else {
    AddGroups(batch, logits, top_k, &part->sums);
  }
}

EvaluationResult Summarise(const EvaluationPart& part) {
  const EvaluationSums& sums = part.sums;
  EvaluationResult result;
  result.samples = sums.samples;
  result.groups = sums.groups;
  result.unlabelled = sums.unlabelled;
  const double samples = static_cast<double>(std::max<int64_t>(1, sums.samples));
  const double groups = static_cast<double>(std::max<int64_t>(1, sums.groups));
  result.logloss = sums.logloss_sum / samples;
  result.accuracy = static_cast<double>(sums.correct) / samples;
  const auto positives = static_cast<double>(sums.positives);
  result.base_logloss = Entropy(positives / samples);
  result.normalised_entropy = result.base_logloss > 0 ? result.logloss / result.base_logloss : kNan;
  result.calibration = positives > 0 ? sums.prediction_sum / positives : kNan;
  if (sums.unlabelled == 0) result.auc = part.scores.ComputeAuc();
  result.hit_rate = sums.hit_sum / groups;
  result.ndcg = sums.ndcg_sum / groups;
  return result;
}

namespace {

constexpr size_t kRunningBins = 4096;
constexpr float kRunningLimit = 16;  // logits beyond it count in the first or last bin

}  // namespace

RunningAuc::RunningAuc() : positive_bins_(kRunningBins), negative_bins_(kRunningBins) {}

void RunningAuc::Add(absl::Span<const float> logits, absl::Span<const float> labels) {
  TANDEM_CHECK(logits.size() == labels.size());
  constexpr float kPerUnit = kRunningBins / (2 * kRunningLimit);
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    const float at = (std::clamp(logits[i], -kRunningLimit, kRunningLimit) + kRunningLimit);
    const size_t bin = std::min(kRunningBins - 1, static_cast<size_t>(at * kPerUnit));
    ++(labels[i] > 0.5f ? positive_bins_ : negative_bins_)[bin];
  }
}

double RunningAuc::Estimate() const { return AucOfBins(positive_bins_, negative_bins_).value; }

void RunningAuc::Reset() {
  std::fill(positive_bins_.begin(), positive_bins_.end(), 0);
  std::fill(negative_bins_.begin(), negative_bins_.end(), 0);
}

}  // namespace tandem::data
