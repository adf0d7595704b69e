#include "worker/early_stopping.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::worker {

void EarlyStopping::Resume(const BestEvaluation& best) {
  best_ = best;
  best_.set_stopped(false);
  has_best_ = true;
}

bool EarlyStopping::Better(double value) const {
  return keep_.metric() == KeepBest::LOGLOSS ? value < best_.value() : value > best_.value();
}

absl::StatusOr<Verdict> EarlyStopping::Judge(int64_t epoch, int64_t step,
                                             const std::string& result) {
  const std::string metric = absl::AsciiStrToLower(KeepBest::Metric_Name(keep_.metric()));
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.keep_best: no worker had validation rows after epoch ", epoch,
                     "; hint: call job.evaluate(loader, data=\"validation\") with samples on at "
                     "least one worker"));
  }
  const nlohmann::json json = nlohmann::json::parse(result, nullptr, /*allow_exceptions=*/false);
  const bool finite = json.is_object() && !json.contains("scores_not_finite");
  if (finite && !(json.contains(metric) && json[metric].is_number())) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.keep_best.metric: the validation rows give no ", metric, ", only ",
                     result, "; hint: do they have both labels? LOGLOSS works with one label"));
  }
  Verdict verdict;
  if (finite) {
    const double value = json[metric].get<double>();
    // The same result again: the run resumes from a checkpoint taken at that evaluation.
    const bool again = has_best_ && best_.epoch() == epoch && best_.value() == value;
    verdict.best = !has_best_ || Better(value) || again;
    if (verdict.best) {
      has_best_ = true;
      best_.set_epoch(epoch);
      best_.set_step(step);
      best_.set_value(value);
    }
  }
  if (first_epoch_ < 0) first_epoch_ = epoch;
  // Patience counts epochs, not calls: a run that resumes may judge an evaluation twice.
  const int64_t since = epoch - (has_best_ ? best_.epoch() : first_epoch_ - every_epochs_);
  verdict.stop = keep_.patience() > 0 && since >= int64_t{keep_.patience()} * every_epochs_;
  best_.set_stopped(verdict.stop);
  return verdict;
}

}  // namespace tandem::worker
