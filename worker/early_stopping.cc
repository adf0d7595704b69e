#include "worker/early_stopping.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::worker {

void EarlyStopping::Resume(const BestEvaluation& best) {
  best_ = best;
  best_.set_stopped(false);
  has_best_ = true;
}

bool EarlyStopping::Better(double value) const {
  const bool smaller = keep_.metric() == KeepBest::LOGLOSS || keep_.smaller_is_better();
  return smaller ? value < best_.value() : value > best_.value();
}

// The value that decides; null if it is not finite.
absl::StatusOr<std::optional<double>> EarlyStopping::ValueIn(int64_t epoch,
                                                             const std::string& result) const {
  const nlohmann::json json = nlohmann::json::parse(result, nullptr, /*allow_exceptions=*/false);
  if (keep_.metric() == KeepBest::REPORTED) {
    const nlohmann::json reported =
        json.is_object() ? json.value("reported", nlohmann::json()) : nlohmann::json();
    const auto it = reported.find(keep_.name());
    if (it == reported.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("train.keep_best.name: the script has not reported ", keep_.name(),
                       " after epoch ", epoch,
                       "; hint: behind the loop over job.evaluate(loader, data=\"validation\") say "
                       "job.report(",
                       keep_.name(), "=VALUE, reduce=\"mean\", weight=SAMPLES) on all workers"));
    }
    return it->is_number() ? std::optional<double>(it->get<double>()) : std::nullopt;
  }
  if (result.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("train.keep_best: no worker had validation rows after epoch ", epoch,
                     "; hint: call job.evaluate(loader, data=\"validation\") with samples on at "
                     "least one worker"));
  }
  const std::string metric = absl::AsciiStrToLower(KeepBest::Metric_Name(keep_.metric()));
  if (!json.is_object() || json.contains("scores_not_finite")) return std::nullopt;
  if (json.contains(metric) && json[metric].is_number()) return json[metric].get<double>();
  return absl::InvalidArgumentError(
      absl::StrCat("train.keep_best.metric: the validation rows give no ", metric, ", only ",
                   result, "; hint: do they have both labels? LOGLOSS works with one label"));
}

absl::StatusOr<Verdict> EarlyStopping::Judge(int64_t epoch, int64_t step,
                                             const std::string& result) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<double> found, ValueIn(epoch, result));
  Verdict verdict;
  if (found.has_value()) {
    const double value = *found;
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
