#include "cli/launch/restarts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "scheduler/failure/failure_judge.h"

namespace tandem::cli {
namespace {

// Two equal errors count as the same error if their steps differ by at most this. A worker prepares
// a step while the step before ends, so its report may name either.
constexpr int64_t kSameStep = 2;

constexpr int64_t kNever = -1;  // no attempt has started

}  // namespace

std::string RestartsFlag(const scheduler::Restarts& restarts) {
  return nlohmann::json({{"count", restarts.count},
                         {"seconds", restarts.seconds},
                         {"steps_again", restarts.steps_again},
                         {"last", restarts.last},
                         {"down_since_us", absl::ToUnixMicros(restarts.down_since)},
                         {"started", restarts.started},
                         {"trains_since_us", restarts.trains_since.has_value()
                                                 ? absl::ToUnixMicros(*restarts.trains_since)
                                                 : kNever},
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
  const auto text = [&json](const char* name) {
    return json.contains(name) && json[name].is_string();
  };
  if (!json.is_object() || !number("count") || !number("seconds") || !number("steps_again") ||
      !number("down_since_us") || !number("left") || !number("left_again_us") ||
      !number("trains_since_us") || !text("last") || !text("started")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--restarts: expected the JSON that tandem run passes, got: ", flag));
  }
  out.count = json["count"].get<int>();
  out.seconds = json["seconds"].get<double>();
  out.steps_again = json["steps_again"].get<int64_t>();
  out.last = json["last"].get<std::string>();
  out.down_since = absl::FromUnixMicros(json["down_since_us"].get<int64_t>());
  out.started = json["started"].get<std::string>();
  if (const auto since = json["trains_since_us"].get<int64_t>(); since != kNever) {
    out.trains_since = absl::FromUnixMicros(since);
  }
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
  if (failure.no_room && full_disk_) {
    why_not_ = "a disk is full a second time without a newer checkpoint, so it would come again";
    return false;
  }
  if (Repeats(failure.error, failure.step)) {
    why_not_ = absl::StrCat("the same error at step ", WithCommas(failure.step),
                            " twice, so it would come again");
    return false;
  }
  if (const int before = RecentOnes(now) - (IsReplacing() ? 1 : 0); before >= most_) {
    why_not_ = absl::StrCat("restarted ", before, " times within an hour, as often as ",
                            "cluster.max_restarts allows");
    return false;
  }
  if (since_saved_ >= most_) {
    why_not_ = absl::StrCat("restarted ", since_saved_, " times without a newer checkpoint");
    return false;
  }
  return true;
}

// Notes the error. Returns whether a worker has reported it before, at about the same step.
bool Restarts::Repeats(const std::string& error, int64_t step) {
  if (error.empty() || step < 0) return false;
  const auto [last, is_new] = errors_.insert({scheduler::WithoutNumbers(error), step});
  const int64_t apart = std::abs(step - std::exchange(last->second, step));
  return !is_new && apart <= kSameStep;
}

// Later attempts keep the first moment, so that the seconds of the run include its restarts.
void Restarts::OnStarted(absl::Time now, double seconds, const std::string& since) {
  if (!trains_since_.has_value()) trains_since_ = now - absl::Seconds(seconds);
  started_ = since;
}

int Restarts::RecentOnes(absl::Time now) const {
  return static_cast<int>(std::count_if(all_.begin(), all_.end(), [now](const One& one) {
    return now - one.at < scheduler::kRestartsCountFor;
  }));
}

void Restarts::Begin(absl::Time now, const AttemptFailure& failure, int64_t step,
                     int64_t steps_again) {
  if (IsReplacing()) all_.pop_back();
  all_.push_back({now, failure.text, step, steps_again, "", 0});
  ++since_saved_;
  full_disk_ |= failure.no_room;
}

void Restarts::OnPassedOver(int64_t step) {
  if (all_.empty() || !all_.back().replaced.empty() || all_.back().seconds > 0) return;
  all_.back().steps_again += all_.back().step - step;
  all_.back().step = step;
}

int64_t Restarts::OnRecovered(double seconds) {
  const auto last =
      std::find_if(all_.rbegin(), all_.rend(), [](const One& one) { return one.replaced.empty(); });
  if (last == all_.rend()) return 0;
  last->seconds = seconds;
  return last->steps_again;
}

// The run has lost nothing, so this restart needs no newer checkpoint.
void Restarts::BeginReplacement(absl::Time now, const std::string& node, const std::string& why,
                                int64_t step) {
  (void)Repeats(why, step);  // the scheduler knows whether it is the second time
  One& one = all_.emplace_back();
  one.at = now;
  one.why = absl::StrCat(node, ": ", why);
  one.replaced = node;
}

void Restarts::OnReplaced(const std::string& node, double seconds, int64_t step,
                          int64_t steps_again) {
  const auto last = std::find_if(all_.rbegin(), all_.rend(),
                                 [&](const One& one) { return one.replaced == node; });
  if (last == all_.rend()) return;
  last->seconds = seconds;
  last->step = step;
  last->steps_again = steps_again;
}

scheduler::Restarts Restarts::ForScheduler(absl::Time now) const {
  scheduler::Restarts out;
  out.trains_since = trains_since_;
  out.started = started_;
  out.left = std::max(0, most_ - RecentOnes(now));
  if (all_.empty()) return out;
  if (out.left == 0) {  // the oldest one that counts
    out.left_again =
        all_[all_.size() - static_cast<size_t>(RecentOnes(now))].at + scheduler::kRestartsCountFor;
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
    if (!one.replaced.empty()) out.back()["replaced"] = one.replaced;
    if (one.seconds > 0) out.back()["seconds"] = one.seconds;
  }
  return out;
}

}  // namespace tandem::cli
