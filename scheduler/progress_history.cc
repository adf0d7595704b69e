#include "scheduler/progress_history.h"

#include "scheduler/summary.h"

namespace tandem::scheduler {

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
  return out;
}

}  // namespace tandem::scheduler
