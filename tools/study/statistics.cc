#include "tools/study/statistics.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <vector>

#include "base/check.h"

namespace tandem::study {
namespace {

constexpr double kUpper = 0.975;  // quantile for a two-sided 95 % interval

// Differences that are this small, relative to the values, are rounding and not an effect.
constexpr double kRounding = 1e-12;

// `effect`, the difference of `a` from `b`, or 0 if the two values differ only by rounding.
double WithoutRounding(double effect, double a, double b) {
  return std::abs(a - b) <= kRounding * std::abs(b) ? 0 : effect;
}

Effect EffectOf(const std::vector<double>& differences) {
  const Spread spread = SpreadOf(differences);
  Effect effect;
  effect.seeds = spread.count;
  effect.mean = spread.mean;
  effect.low = spread.low;
  effect.high = spread.high;
  effect.enough = spread.count >= kEnoughSeeds;
  // A few equal differences (of a count, or of a clock's tick) say nothing about their spread, so
  // their interval would be too narrow. Without enough seeds such differences do not resolve an
  // effect.
  const bool spread_known = effect.enough || spread.deviation > kRounding * std::abs(spread.mean);
  effect.resolved = spread.count >= 2 && spread_known && (spread.low > 0 || spread.high < 0);
  return effect;
}

}  // namespace

double TQuantile(double p, double degrees) {
  TANDEM_CHECK(degrees >= 1 && p > 0 && p < 1);
  return boost::math::quantile(boost::math::students_t(degrees), p);
}

Spread SpreadOf(absl::Span<const double> values) {
  Spread spread;
  spread.count = values.size();
  if (values.empty()) return spread;
  const double n = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value / n;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  const auto [min, max] = std::minmax_element(values.begin(), values.end());
  spread.min = *min;
  spread.max = *max;
  if (values.size() > 1) spread.deviation = std::sqrt(squares / (n - 1));
  const double half =
      values.size() > 1 ? TQuantile(kUpper, n - 1) * spread.deviation / std::sqrt(n) : 0;
  spread.low = spread.mean - half;
  spread.high = spread.mean + half;
  return spread;
}

Spread SpreadOfPositive(absl::Span<const double> values) {
  std::vector<double> logarithms;
  for (const double value : values) {
    TANDEM_CHECK(value > 0);
    logarithms.push_back(std::log(value));
  }
  const Spread of_logarithms = SpreadOf(logarithms);
  Spread spread = SpreadOf(values);
  if (values.empty()) return spread;
  spread.mean = std::exp(of_logarithms.mean);
  spread.low = std::exp(of_logarithms.low);
  spread.high = std::exp(of_logarithms.high);
  return spread;
}

Effect DifferenceOf(absl::Span<const double> a, absl::Span<const double> b) {
  TANDEM_CHECK(a.size() == b.size());
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) {
    differences.push_back(WithoutRounding(a[i] - b[i], a[i], b[i]));
  }
  return EffectOf(differences);
}

Effect RatioOf(absl::Span<const double> a, absl::Span<const double> b) {
  TANDEM_CHECK(a.size() == b.size());
  std::vector<double> differences;
  for (size_t i = 0; i < a.size(); ++i) {
    TANDEM_CHECK(a[i] > 0 && b[i] > 0);
    differences.push_back(WithoutRounding(std::log(a[i] / b[i]), a[i], b[i]));
  }
  Effect effect = EffectOf(differences);
  effect.mean = std::exp(effect.mean);
  effect.low = std::exp(effect.low);
  effect.high = std::exp(effect.high);
  return effect;
}

}  // namespace tandem::study
