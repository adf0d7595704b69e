// Quality of a model on test samples: logloss, accuracy, AUC, HR@k and NDCG@k.
//
// Each worker sums up its share (EvaluationPart), the parts are merged in any order, and Summarise
// finishes. Ties never help: equal scores count half in AUC, and a positive ranks below every
// candidate with an equal score, so a constant model has AUC .5, HR 0 and NDCG 0.
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

// Sums over samples, or over ranking groups. Plain numbers, so that they can travel.
struct EvaluationSums {
  int64_t samples = 0;     // of batches without groups
  double logloss_sum = 0;  // nats
  int64_t correct = 0;     // logit > 0 equals label 1
  int64_t positives = 0;   // samples with label 1
  int64_t unlabelled = 0;  // samples without a label, which are in none of the three sums
  int64_t groups = 0;
  double hit_sum = 0;
  double ndcg_sum = 0;

  void Merge(const EvaluationSums& other);
};

// What AUC needs: all scores while there are at most kExactScores of them, from then on counts in
// kAucBins bins of equal width of the predicted probability.
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

  // For sending a part elsewhere: the scores, or the counts per bin (then `logits` is empty).
  const std::vector<float>& logits() const { return logits_; }
  const std::vector<uint8_t>& labels() const { return labels_; }
  const std::vector<uint64_t>& positive_bins() const { return positive_bins_; }
  const std::vector<uint64_t>& negative_bins() const { return negative_bins_; }
  // Adds counts that came from another ScoreSample. Requires: kAucBins counts each.
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
  std::vector<uint8_t> labels_;  // one per logit
  std::vector<uint64_t> positive_bins_, negative_bins_;
};

struct EvaluationPart {
  EvaluationSums sums;
  ScoreSample scores;

  void Merge(const EvaluationPart& other);
};

// Adds a batch: its samples (a label that is NaN is none), or, if it has groups, the ranks of their positives (HR and NDCG at
// top_k). Requires: one logit per sample.
void AddBatch(const Batch& batch, absl::Span<const float> logits, int top_k, EvaluationPart* part);

// Binary cross-entropy in nats, without overflow for any finite logit.
double Logloss(float logit, float label);

// How many of `candidates` do not score strictly below the positive: 0 is the best rank.
size_t RankOfPositive(float positive, absl::Span<const float> candidates);

struct EvaluationResult {
  int64_t samples = 0;
  int64_t unlabelled = 0;            // of them; if there are any, the measures below mean nothing
  double logloss = 0, accuracy = 0;  // means over samples; 0 without samples
  double base_logloss = 0;           // that of a model that always says the share of positives
  ScoreSample::Auc auc;
  int64_t groups = 0;
  double hit_rate = 0, ndcg = 0;  // means over groups; 0 without groups
};
EvaluationResult Summarise(const EvaluationPart& part);

// An estimate of the AUC of the samples since Reset, for the progress line: counts in 4,096 bins of
// the logit between -16 and 16. Cheap enough for every step.
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
