#include "collectives/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
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

}  // namespace

Trace::Trace(std::string process_name, int process, size_t most_events)
    : process_name_(std::move(process_name)), process_(process), most_events_(most_events) {}

void Trace::Add(TraceEvent event) {
  const absl::MutexLock lock(&mutex_);
  if (events_.size() >= most_events_) {
    ++dropped_;
    return;
  }
  events_.push_back(std::move(event));
}

void Trace::AddOperations(absl::Span<const OperationRecord> records, const std::string& lane) {
  for (const OperationRecord& r : records) {
    if (r.finished == absl::InfiniteFuture() || r.begun == absl::InfiniteFuture()) continue;
    Add({absl::StrCat(PrimitiveName(r.primitive), " #", r.number),
         r.failed ? "failed" : "collective", r.begun, r.finished - r.begun, lane});
  }
}

std::string Trace::ToJson() const {
  const absl::MutexLock lock(&mutex_);
  Json events = Json::array({NameOfProcess(process_name_, process_)});
  std::map<std::string, int> lanes;
  for (const TraceEvent& e : events_) {
    const auto [lane, fresh] = lanes.emplace(e.lane, static_cast<int>(lanes.size()) + 1);
    if (fresh) events.push_back(NameOfLane(e.lane, process_, lane->second));
    events.push_back({{"ph", "X"},
                      {"name", e.name},
                      {"cat", e.category},
                      {"ts", absl::ToDoubleMicroseconds(e.start - absl::UnixEpoch())},
                      {"dur", absl::ToDoubleMicroseconds(e.duration)},
                      {"pid", process_},
                      {"tid", lane->second}});
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
