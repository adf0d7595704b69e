#include "scheduler/observe/counter_file.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "scheduler/observe/summary.h"

namespace tandem::scheduler {

CounterFile::CounterFile(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  const absl::StatusOr<std::string> text = ReadWholeFile(path_);
  if (!text.ok()) return;
  const auto values = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object()) return;
  for (const auto& [name, value] : values.items()) {
    if (value.is_number()) largest_[name] = value.get<double>();
  }
}

void CounterFile::Raise(std::vector<prometheus::MetricFamily>* families) {
  absl::MutexLock lock(&mutex_);
  bool changed = false;
  const auto raise = [&](const std::string& name, auto* value)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                           double& largest = largest_[name];
                           changed = changed || static_cast<double>(*value) > largest;
                           largest = std::max(largest, static_cast<double>(*value));
                           *value = static_cast<std::decay_t<decltype(*value)>>(largest);
                         };
  for (prometheus::MetricFamily& family : *families) {
    if (absl::StartsWith(family.name, "tandem_restart")) continue;
    for (prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const auto& label : metric.label) {
        absl::StrAppend(&name, ",", label.name, "=", label.value);
      }
      if (family.type == prometheus::MetricType::Counter) raise(name, &metric.counter.value);
      if (family.type != prometheus::MetricType::Histogram) continue;
      raise(name + ",count", &metric.histogram.sample_count);
      raise(name + ",sum", &metric.histogram.sample_sum);
      for (auto& bucket : metric.histogram.bucket) {
        raise(absl::StrCat(name, ",le=", bucket.upper_bound), &bucket.cumulative_count);
      }
    }
  }
  if (!changed || path_.empty()) return;
  (void)WriteFileAtomically(path_, OneLine(nlohmann::json(largest_)) + "\n");
}

}  // namespace tandem::scheduler
