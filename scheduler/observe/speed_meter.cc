#include "scheduler/observe/speed_meter.h"

namespace tandem::scheduler {

void SpeedMeter::Start(absl::Time now) {
  for (Worker& worker : workers_) worker = {{Mark{now}}, Mark{now}};
}

void SpeedMeter::Add(absl::Time now, int rank, const Progress& progress) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  if (worker.ends.empty()) return;
  worker.now = {now, progress.samples(), progress.paused_seconds()};
  const Mark& last = worker.ends.back();
  // Another process has taken the place of the worker.
  if (worker.now.samples < last.samples || worker.now.paused < last.paused) {
    worker.ends = {worker.now};
  }
}

double SpeedMeter::Trained(const Mark& from, const Mark& to) {
  return absl::ToDoubleSeconds(to.at - from.at) - (to.paused - from.paused);
}

absl::optional<double> SpeedMeter::Take() {
  double speed = 0;
  bool trains = false, pauses = false;
  for (auto& [ends, now] : workers_) {
    const Mark last = ends.back();
    const double since = absl::ToDoubleSeconds(now.at - last.at);
    if (since > 0 && now.samples == last.samples && Trained(last, now) < since / 2) {
      pauses = true;
      ends.back() = now;
      continue;
    }
    trains = true;
    if (since <= 0 && now.samples == last.samples) continue;  // no report has come
    while (ends.size() > 1 && Trained(ends[1], now) >= least_) ends.pop_front();
    const double seconds = Trained(ends.front(), now);
    if (seconds > 0) speed += static_cast<double>(now.samples - ends.front().samples) / seconds;
    ends.push_back(now);
  }
  return pauses && !trains ? absl::nullopt : absl::optional<double>(speed);
}

}  // namespace tandem::scheduler
