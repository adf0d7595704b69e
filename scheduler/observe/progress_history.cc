#include "scheduler/observe/progress_history.h"

#include <utility>

#include "scheduler/observe/summary.h"

namespace tandem::scheduler {

void ProgressHistory::AddEvaluation(const nlohmann::json& evaluation) {
  nlohmann::json point = {{"seconds", seconds_}};
  for (const char* name : {"step", "data", "auc", "logloss", "accuracy", "hr_at_10"}) {
    if (const auto it = evaluation.find(name); it != evaluation.end()) point[name] = *it;
  }
  if (evaluations_.size() == kMax) evaluations_.erase(evaluations_.begin());
  evaluations_.push_back(std::move(point));
}

nlohmann::json ProgressHistory::Json() const {
  nlohmann::json out = nlohmann::json::object();
  for (const char* measure : {"seconds", "min_step", "samples_per_second", "loss", "auc",
                              "staleness_mean", "staleness_max"}) {
    out[measure] = nlohmann::json::array();
  }
  for (const JobProgress& point : points_) {
    const nlohmann::json json = ProgressJson(point);
    for (auto& [measure, values] : out.items()) {
      const auto it = json.find(measure);
      values.push_back(it == json.end() ? nlohmann::json() : *it);
    }
  }
  out["evaluations"] = evaluations_;
  return out;
}

}  // namespace tandem::scheduler
