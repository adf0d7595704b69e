// Measures of a model's quality on test samples: logloss, normalised entropy, calibration,
// accuracy, AUC, HR@k and NDCG@k.
//
// Each worker sums up its share (EvaluationPart). The parts are merged in any order, and Summarise
// computes the result. Ties never help a model: equal scores count half in AUC, and a positive
// ranks below every candidate with an equal score. A constant model therefore has AUC .5, HR 0 and
// NDCG 0.
//
// Thread safety: one thread at a time per object; the functions are pure.
#ifndef TANDEM_DATA_METRICS_H_
#define TANDEM_DATA_METRICS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "data/batch.h"

namespace tandem::data {

// Sums over samples, or over ranking groups. The fields are plain numbers, so that they can travel
// between processes.
struct EvaluationSums {
  int64_t samples = 0;        // samples of batches without groups
  double logloss_sum = 0;     // nats
  int64_t correct = 0;        // logit > 0 equals label 1
  int64_t positives = 0;      // samples with label 1
  double prediction_sum = 0;  // predicted probabilities of label 1
  int64_t unlabelled = 0;     // unlabelled samples, which the four sums leave out
  int64_t groups = 0;
  double hit_sum = 0;
  double ndcg_sum = 0;

  void Merge(const EvaluationSums& other);
};

// The scores that AUC is computed from. Up to kExactScores scores are kept. With more scores they
// are counts in kAucBins bins of equal width of the predicted probability.
inline constexpr size_t kExactScores = 10'000'000;
inline constexpr size_t kAucBins = size_t{1} << 20;
class ScoreSample {
 public:
  explicit ScoreSample(size_t exact_scores = kExactScores) : exact_scores_(exact_scores) {}

  void Add(absl::Span<const float> logits, absl::Span<const float> labels);
  void Merge(const ScoreSample& other);

  struct Auc {
    double value = 0;  // NaN if there are not both positives and negatives, or a score is NaN
    double error = 0;  // |value - exact AUC| is at most this; 0 if exact
  };
  Auc ComputeAuc() const;

  // The parts of a sample, for sending it elsewhere: the scores, or the counts per bin (`logits` is
  // empty then).
  const std::vector<float>& logits() const { return logits_; }
  const std::vector<uint8_t>& labels() const { return labels_; }
  const std::vector<uint64_t>& positive_bins() const { return positive_bins_; }
  const std::vector<uint64_t>& negative_bins() const { return negative_bins_; }
  // Adds counts of another ScoreSample. Requires: kAucBins counts each.
  void AddBins(absl::Span<const uint64_t> positives, absl::Span<const uint64_t> negatives);

 private:
  bool binned() const { return !positive_bins_.empty(); }
  void UseBins();
  void CountInBin(float logit, bool positive);
  Auc ExactAuc() const;
  Auc BinnedAuc() const;

  const size_t exact_scores_;
  bool has_nan_ = false;
  std::vector<float> logits_;
  std::vector<uint8_t> labels_;  // one for each logit
  std::vector<uint64_t> positive_bins_, negative_bins_;
};

struct EvaluationPart {
  EvaluationSums sums;
  ScoreSample scores;

  void Merge(const EvaluationPart& other);
};

// Adds a batch. If the batch has groups, adds the ranks of their positives (HR and NDCG at top_k),
// else its samples (a NaN label means no label). Requires: one logit for each sample.
void AddBatch(const Batch& batch, absl::Span<const float> logits, int top_k, EvaluationPart* part);

// The binary cross-entropy in nats. Does not overflow for any finite logit.
double Logloss(float logit, float label);

// The number of `candidates` that do not score strictly below the positive. 0 is the best rank.
size_t RankOfPositive(float positive, absl::Span<const float> candidates);

struct EvaluationResult {
  int64_t samples = 0;
  // Samples without a label; if more than 0, the measures below are invalid.
  int64_t unlabelled = 0;
  double logloss = 0, accuracy = 0;  // means over samples; 0 without samples
  double base_logloss = 0;  // logloss of a model that always predicts the share of positives
  // logloss / base_logloss (He et al. 2014); NaN if there are not both positives and negatives.
  double normalised_entropy = 0;
  double calibration = 0;  // mean prediction / share of positives; NaN without positives
  ScoreSample::Auc auc;
  int64_t groups = 0;
  double hit_rate = 0, ndcg = 0;  // means over groups; 0 without groups
};
EvaluationResult Summarise(const EvaluationPart& part);

// Estimates the AUC of the samples since Reset, for the progress line. Counting the logits in 4,096
// bins between -16 and 16 is cheap enough for every step.
class RunningAuc {
 public:
  RunningAuc();
  void Add(absl::Span<const float> logits, absl::Span<const float> labels);
  double Estimate() const;  // NaN until both labels have been seen
  void Reset();

 private:
  std::vector<uint64_t> positive_bins_, negative_bins_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_METRICS_H_
