// A worker's part of an evaluation on its way to rank 0, and what all parts say together.
//
// Thread safety: pure functions.
#ifndef TANDEM_WORKER_EVALUATION_SHARE_H_
#define TANDEM_WORKER_EVALUATION_SHARE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "data/metrics.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// Sums go into `share`; `payload` holds the scores behind AUC: all logits and then all labels (f32
// each), or the counts of kAucBins bins of positives and then of negatives (u64 each).
void EncodeShare(const data::EvaluationPart& part, BufferSource& buffers, EvaluationShare* share,
                 Buffer* payload);

// All shares, by rank, as JSON: `samples`, `logloss`, `base_logloss`, `accuracy`, `auc` (with
// `auc_error_bound` where it is not exact), and for ranking `groups`, `hr_at_K`, `ndcg_at_K`. If samples
// have no label, `unlabelled` counts them and stands in place of all measures but for ranking. If any score is infinite
// or no number, `scores_not_finite` stands in place of logloss, accuracy and AUC: an order of such
// scores means nothing, even where it exists. INVALID_ARGUMENT names the rank whose payload has the
// wrong size.
absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                        const std::map<int, Buffer>& payloads, int top_k);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_SHARE_H_
