#include "collectives/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

using Json = nlohmann::ordered_json;

Json NameOfProcess(const std::string& name, int process) {
  return {{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}};
}
Json NameOfLane(const std::string& name, int process, int lane) {
  return {{"ph", "M"},
          {"name", "thread_name"},
          {"pid", process},
          {"tid", lane},
          {"args", {{"name", name}}}};
}

// One track of a lane: its slices nest or do not overlap.
class Track {
 public:
  // Adds the slice if it fits. Slices must come in order of their start; if slices have the same
  // start, the longest comes first.
  bool Take(absl::Time start, absl::Time end) {
    while (!open_.empty() && open_.back() <= start) open_.pop_back();
    if (!open_.empty() && end > open_.back()) return false;
    open_.push_back(end);
    return true;
  }

 private:
  std::vector<absl::Time> open_;  // ends of the slices that enclose the next one, innermost last
};

}  // namespace

Trace::Trace(std::string process_name, int process, size_t max_events)
    : process_name_(std::move(process_name)), process_(process), max_events_(max_events) {}

void Trace::Add(TraceEvent event) {
  const absl::MutexLock lock(&mutex_);
  if (events_.size() >= max_events_) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
}

std::string Trace::ToJson() const {
  const absl::MutexLock lock(&mutex_);
  Json events = Json::array({NameOfProcess(process_name_, process_)});
  std::vector<const TraceEvent*> in_order;
  for (const TraceEvent& e : events_) in_order.push_back(&e);
  std::stable_sort(in_order.begin(), in_order.end(), [](const TraceEvent* a, const TraceEvent* b) {
    return std::tie(a->start, b->duration) < std::tie(b->start, a->duration);
  });
  std::map<std::string, std::vector<std::pair<Track, int>>> lanes;  // each track with its number
  int tracks = 0;
  for (const TraceEvent* e : in_order) {
    auto& lane = lanes[e->lane];
    auto at = std::find_if(lane.begin(), lane.end(), [&](auto& track) {
      return track.first.Take(e->start, e->start + e->duration);
    });
    if (at == lane.end()) {
      at = lane.insert(lane.end(), {Track(), ++tracks});
      at->first.Take(e->start, e->start + e->duration);
      const std::string name = lane.size() == 1 ? e->lane : absl::StrCat(e->lane, " ", lane.size());
      events.push_back(NameOfLane(name, process_, at->second));
    }
    events.push_back({{"ph", "X"},
                      {"name", e->name},
                      {"cat", e->category},
                      {"ts", absl::ToDoubleMicroseconds(e->start - absl::UnixEpoch())},
                      {"dur", absl::ToDoubleMicroseconds(e->duration)},
                      {"pid", process_},
                      {"tid", at->second}});
  }
  const Json all = {{"displayTimeUnit", "ms"},
                    {"otherData", {{"events_left_out", dropped_}}},
                    {"traceEvents", std::move(events)}};
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status Trace::Write(const std::string& path) const {
  std::ofstream file(path);
  file << ToJson() << std::flush;
  if (file) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

size_t Trace::size() const {
  const absl::MutexLock lock(&mutex_);
  return events_.size();
}

}  // namespace tandem::collectives
