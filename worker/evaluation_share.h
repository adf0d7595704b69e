// Encodes a worker's share of an evaluation for rank 0, and merges the shares of all workers.
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

// Sums go into `share`. `payload` holds the scores for AUC: either all logits and then all labels
// (f32 each), or the counts of kAucBins bins of positives and then of negatives (u64 each).
void EncodeShare(const data::EvaluationPart& part, BufferSource& buffers, EvaluationShare* share,
                 Buffer* payload);

// Merges all shares, by rank, into JSON: `samples`, `logloss`, `base_logloss`,
// `normalised_entropy`, `calibration`, `accuracy`, `auc` (with `auc_error_bound` where AUC is not
// exact), and for ranking `groups`, `hr_at_K`, `ndcg_at_K`. If samples have no label, `unlabelled`
// counts them and replaces all measures except ranking. If any score is infinite or NaN,
// `scores_not_finite` replaces all measures except ranking: an order of such scores means nothing,
// even where it exists. `normalised_entropy` is absent for one-class data, and `calibration`
// without positives. INVALID_ARGUMENT names the rank whose payload has the wrong size.
absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                        const std::map<int, Buffer>& payloads, int top_k);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_SHARE_H_
