#include "worker/evaluation_share.h"

#include <cmath>
#include <cstring>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::worker {
namespace {

template <typename T>
uint8_t* Append(absl::Span<const T> values, uint8_t* to) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  return to + values.size() * sizeof(T);
}

data::EvaluationSums SumsOf(const EvaluationShare& share) {
  data::EvaluationSums sums;
  sums.samples = share.samples();
  sums.logloss_sum = share.loss_sum();
  sums.correct = share.correct();
  sums.positives = share.positives();
  sums.prediction_sum = share.prediction_sum();
  sums.unlabelled = share.unlabelled();
  sums.groups = share.groups();
  sums.hit_sum = share.hits();
  sums.ndcg_sum = share.ndcg();
  return sums;
}

absl::Status AddScores(int rank, bool binned, const Buffer& payload, data::ScoreSample* scores) {
  const size_t want = binned ? 2 * data::kAucBins * sizeof(uint64_t) : 2 * sizeof(float);
  if (binned ? payload.size() != want : payload.size() % want != 0) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation share of worker ", rank, ": ",
                                                   payload.size(), " bytes, expected ",
                                                   binned ? "" : "a multiple of ", want));
  }
  if (binned) {
    const absl::Span<const uint64_t> bins = payload.As<uint64_t>();
    scores->AddBins(bins.first(data::kAucBins), bins.subspan(data::kAucBins));
  } else {
    const absl::Span<const float> floats = payload.As<float>();
    scores->Add(floats.first(floats.size() / 2), floats.subspan(floats.size() / 2));
  }
  return absl::OkStatus();
}

std::string ToJson(const data::EvaluationResult& result, int top_k) {
  nlohmann::json json;
  if (result.samples > 0) {
    json["samples"] = result.samples;
    if (result.unlabelled > 0) json["unlabelled"] = result.unlabelled;
    if (!std::isfinite(result.logloss)) {
      json["scores_not_finite"] = true;
    } else if (result.unlabelled ==
               // Otherwise readers would take measures of some samples for measures of all samples.
               0) {
      json["logloss"] = result.logloss;
      json["base_logloss"] = result.base_logloss;
      if (std::isfinite(result.normalised_entropy)) {
        json["normalised_entropy"] = result.normalised_entropy;
      }
      if (std::isfinite(result.calibration)) json["calibration"] = result.calibration;
      json["accuracy"] = result.accuracy;
      if (std::isfinite(result.auc.value)) json["auc"] = result.auc.value;
      if (result.auc.error > 0) json["auc_error_bound"] = result.auc.error;
    }
  }
  if (result.groups > 0) {
    json["groups"] = result.groups;
    json[absl::StrCat("hr_at_", top_k)] = result.hit_rate;
    json[absl::StrCat("ndcg_at_", top_k)] = result.ndcg;
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void EncodeShare(const data::EvaluationPart& part, BufferSource& buffers, EvaluationShare* share,
                 Buffer* payload) {
  share->set_samples(part.sums.samples);
  share->set_loss_sum(part.sums.logloss_sum);
  share->set_correct(part.sums.correct);
  share->set_positives(part.sums.positives);
  share->set_prediction_sum(part.sums.prediction_sum);
  share->set_unlabelled(part.sums.unlabelled);
  share->set_groups(part.sums.groups);
  share->set_hits(part.sums.hit_sum);
  share->set_ndcg(part.sums.ndcg_sum);
  const data::ScoreSample& scores = part.scores;
  const std::vector<float> labels(scores.labels().begin(), scores.labels().end());
  const size_t bins = scores.positive_bins().size() + scores.negative_bins().size();
  const size_t bytes =
      (scores.logits().size() + labels.size()) * sizeof(float) + bins * sizeof(uint64_t);
  share->set_binned(bins > 0);
  *payload = bytes == 0 ? Buffer() : buffers.Alloc(bytes);
  uint8_t* to = payload->mutable_data();
  to = Append<float>(scores.logits(), to);
  to = Append<float>(labels, to);
  to = Append<uint64_t>(scores.positive_bins(), to);
  Append<uint64_t>(scores.negative_bins(), to);
}

absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                        const std::map<int, Buffer>& payloads, int top_k) {
  data::EvaluationPart all;
  for (const auto& [rank, share] : shares) {
    all.sums.Merge(SumsOf(share));
    TANDEM_RETURN_IF_ERROR(AddScores(rank, share.binned(), payloads.at(rank), &all.scores));
  }
  return ToJson(data::Summarise(all), top_k);
}

}  // namespace tandem::worker
