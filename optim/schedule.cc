#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::optim {
namespace {

using Config = tandem::Schedule;

constexpr double kPi = 3.14159265358979323846;

// A field that some kinds take and all others refuse.
struct Field {
  const char* name;
  bool set;
  bool taken;   // by this kind
  bool needed;  // ... which has no default for it
};

absl::Status CheckFields(const Config& c) {
  const Config::Kind kind = c.kind();
  const bool decays = kind == Config::STEP || kind == Config::EXPONENTIAL;
  const bool ends = kind == Config::POLYNOMIAL || kind == Config::COSINE;
  const bool restarts = c.restart_samples() > 0;
  const std::string name = Config::Kind_Name(kind);
  const Field fields[] = {
      {"warmup_samples", c.warmup_samples() > 0, kind != Config::POINTS,
       kind == Config::INVERSE_SQRT || c.warmup_factor() > 0},
      {"warmup_factor", c.warmup_factor() > 0, kind != Config::POINTS, false},
      {"every_samples", c.every_samples() > 0, decays, decays},
      {"factor", c.factor() > 0, decays, decays},
      {"power", c.power() > 0, kind == Config::POLYNOMIAL, false},
      {"end_factor", c.end_factor() > 0, ends, false},
      {"total_samples", c.total_samples() > 0, ends && !restarts, ends && !restarts},
      {"restart_samples", restarts, kind == Config::COSINE, c.restart_growth() > 0},
      {"restart_growth", c.restart_growth() > 0, kind == Config::COSINE, false},
      {"point", c.point_size() > 0, kind == Config::POINTS, kind == Config::POINTS},
  };
  for (const Field& field : fields) {
    if (field.set && !field.taken) {
      return absl::InvalidArgumentError(absl::StrCat(
          field.name, ": not for ", name,
          restarts && ends ? " with restart_samples, which has no end" : "", "; remove it"));
    }
    if (field.needed && field.taken && !field.set) {
      return absl::InvalidArgumentError(absl::StrCat(field.name, ": ", name, " needs it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOrder(const Config& c) {
  if (c.total_samples() > 0 && c.total_samples() <= c.warmup_samples()) {
    return absl::InvalidArgumentError(absl::StrCat("total_samples: ", c.total_samples(),
                                                   " must be above warmup_samples, which is ",
                                                   c.warmup_samples()));
  }
  for (int i = 1; i < c.point_size(); ++i) {
    if (c.point(i).samples() > c.point(i - 1).samples()) continue;
    return absl::InvalidArgumentError(absl::StrCat("point: samples ", c.point(i).samples(),
                                                   " come after ", c.point(i - 1).samples(),
                                                   "; points must be in rising order"));
  }
  return absl::OkStatus();
}

// Half a cosine, from 1 at share 0 to `end` at share 1.
double HalfCosine(double share, double end) {
  return end + (1 - end) * (1 + std::cos(kPi * share)) / 2;
}

// The share of its cycle that the schedule has completed (SGDR).
double ShareOfCycle(double samples, double length, double growth) {
  if (growth == 1) return std::fmod(samples, length) / length;
  // Cycle n begins at length * (growth^n - 1) / (growth - 1).
  const auto begin = [=](double n) { return length * (std::pow(growth, n) - 1) / (growth - 1); };
  double n = std::floor(std::log1p(samples / length * (growth - 1)) / std::log(growth));
  // The logarithm may be off by a rounding at a border.
  if (begin(n) > samples) --n;
  if (begin(n + 1) <= samples) ++n;
  return (samples - begin(n)) / (length * std::pow(growth, n));
}

double BetweenPoints(const Config& c, double samples) {
  int i = 0;
  while (i < c.point_size() && static_cast<double>(c.point(i).samples()) <= samples) ++i;
  if (i == 0) return c.point(0).factor();
  if (i == c.point_size()) return c.point(i - 1).factor();
  const double begin = static_cast<double>(c.point(i - 1).samples());
  const double share = (samples - begin) / (static_cast<double>(c.point(i).samples()) - begin);
  return c.point(i - 1).factor() + share * (c.point(i).factor() - c.point(i - 1).factor());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Schedule>> Schedule::New(const Config& config) {
  Config c = config;
  if (c.kind() == Config::SCHEDULE_UNSPECIFIED) c.set_kind(Config::CONSTANT);
  if (!Config::Kind_IsValid(c.kind())) {
    return absl::InvalidArgumentError(
        absl::StrCat("kind: ", static_cast<int>(c.kind()), " is unknown"));
  }
  TANDEM_RETURN_IF_ERROR(CheckFields(c));
  TANDEM_RETURN_IF_ERROR(CheckOrder(c));
  if (c.power() == 0) c.set_power(1);
  if (c.restart_growth() == 0) c.set_restart_growth(1);
  std::unique_ptr<Schedule> schedule;
  if (c.kind() != Config::CONSTANT || c.warmup_samples() > 0) schedule.reset(new Schedule(c));
  return schedule;
}

float Schedule::FactorAt(int64_t sample_clock) const {
  const Config& c = config_;
  const double at = static_cast<double>(std::max<int64_t>(0, sample_clock));
  const double warmup = static_cast<double>(c.warmup_samples());
  if (at < warmup) {
    return static_cast<float>(c.warmup_factor() + (1 - c.warmup_factor()) * (at / warmup));
  }
  return static_cast<float>(AfterWarmup(at, at - warmup));
}

// `samples`: since the end of the warm-up.
double Schedule::AfterWarmup(double at, double samples) const {
  const Config& c = config_;
  const double every = static_cast<double>(c.every_samples());
  const double length = static_cast<double>(c.total_samples() - c.warmup_samples());
  switch (c.kind()) {
    case Config::STEP:
      return std::pow(c.factor(), std::floor(samples / every));
    case Config::EXPONENTIAL:
      return std::pow(c.factor(), samples / every);
    case Config::POLYNOMIAL:
      return (1 - c.end_factor()) * std::pow(1 - std::min(1.0, samples / length), c.power()) +
             c.end_factor();
    case Config::COSINE:
      if (c.restart_samples() == 0) {
        return HalfCosine(std::min(1.0, samples / length), c.end_factor());
      }
      return HalfCosine(
          ShareOfCycle(samples, static_cast<double>(c.restart_samples()), c.restart_growth()),
          c.end_factor());
    case Config::INVERSE_SQRT:
      return std::sqrt(static_cast<double>(c.warmup_samples()) / at);
    case Config::POINTS:
      return BetweenPoints(c, at);
    default:
      return 1;
  }
}

}  // namespace tandem::optim
