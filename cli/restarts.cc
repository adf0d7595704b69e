#include "cli/restarts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/numbers.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kCountedFor = absl::Hours(1);
// Two equal errors count as the same error if their steps differ by at most this. A worker prepares
// a step while the step before ends, so its report may name either.
constexpr int64_t kSameStep = 2;

}  // namespace

std::string RestartsFlag(const scheduler::Restarts& restarts) {
  return nlohmann::json({{"count", restarts.count},
                         {"seconds", restarts.seconds},
                         {"steps_again", restarts.steps_again},
                         {"last", restarts.last},
                         {"down_since_us", absl::ToUnixMicros(restarts.down_since)},
                         {"left", restarts.left},
                         {"left_again_us", absl::ToUnixMicros(restarts.left_again)}})
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<scheduler::Restarts> ParseRestartsFlag(const std::string& flag) {
  scheduler::Restarts out;
  if (flag.empty()) return out;
  const auto json = nlohmann::json::parse(flag, nullptr, /*allow_exceptions=*/false);
  const auto number = [&json](const char* name) {
    return json.contains(name) && json[name].is_number();
  };
  if (!json.is_object() || !number("count") || !number("seconds") || !number("steps_again") ||
      !number("down_since_us") || !number("left") || !number("left_again_us") ||
      !json.contains("last") || !json["last"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--restarts: expected the JSON that tandem run passes, got: ", flag));
  }
  out.count = json["count"].get<int>();
  out.seconds = json["seconds"].get<double>();
  out.steps_again = json["steps_again"].get<int64_t>();
  out.last = json["last"].get<std::string>();
  out.down_since = absl::FromUnixMicros(json["down_since_us"].get<int64_t>());
  out.left = json["left"].get<int>();
  out.left_again = absl::FromUnixMicros(json["left_again_us"].get<int64_t>());
  return out;
}

bool Restarts::Allow(absl::Time now, const AttemptFailure& failure) {
  why_not_.clear();
  if (most_ == 0 || failure.comes_again || failure.ending) return false;
  // A role that cannot start will not start the next time. But a process that dies while a later
  // attempt starts is one more fault like the first.
  if (!failure.began && all_.empty()) return false;
  if (!failure.error.empty() && failure.step >= 0) {
    const auto [last, is_new] = errors_.insert({failure.error, failure.step});
    const int64_t apart = std::abs(failure.step - std::exchange(last->second, failure.step));
    if (!is_new && apart <= kSameStep) {
      why_not_ = absl::StrCat("the same error at step ", WithCommas(failure.step),
                              " twice, so it would come again");
      return false;
    }
  }
  if (RecentOnes(now) >= most_) {
    why_not_ = absl::StrCat("restarted ", RecentOnes(now), " times within an hour, as often as ",
                            "cluster.max_restarts allows");
    return false;
  }
  if (since_saved_ >= most_) {
    why_not_ = absl::StrCat("restarted ", since_saved_, " times without a newer checkpoint");
    return false;
  }
  return true;
}

int Restarts::RecentOnes(absl::Time now) const {
  return static_cast<int>(std::count_if(
      all_.begin(), all_.end(), [now](const One& one) { return now - one.at < kCountedFor; }));
}

void Restarts::Begin(absl::Time now, const AttemptFailure& failure, int64_t step,
                     int64_t steps_again) {
  all_.push_back({now, failure.text, step, steps_again});
  ++since_saved_;
}

void Restarts::OnRecovered(double seconds) {
  if (!all_.empty()) all_.back().seconds = seconds;
}

scheduler::Restarts Restarts::ForScheduler(absl::Time now) const {
  scheduler::Restarts out;
  out.left = std::max(0, most_ - RecentOnes(now));
  if (all_.empty()) return out;
  if (out.left == 0) {  // the oldest one that counts
    out.left_again = all_[all_.size() - static_cast<size_t>(RecentOnes(now))].at + kCountedFor;
  }
  out.count = count();
  for (const One& one : all_) {
    out.seconds += one.seconds;
    out.steps_again += one.steps_again;
  }
  out.last = all_.back().why;
  out.down_since = all_.back().at;
  return out;
}

nlohmann::json Restarts::Summary() const {
  nlohmann::json out = nlohmann::json::array();
  for (const One& one : all_) {
    out.push_back({{"why", one.why}, {"step", one.step}, {"steps_again", one.steps_again}});
    if (one.seconds > 0) out.back()["seconds"] = one.seconds;
  }
  return out;
}

}  // namespace tandem::cli
