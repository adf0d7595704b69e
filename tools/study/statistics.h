// The statistics of a study with few runs. Effects are paired: two variations are compared seed by
// seed, so that the influence of a seed on both cancels. The mean difference has a 95 % interval by
// Student's t.
//
// An effect is resolved if its interval does not contain "no effect". Unresolved effects are never
// ranked.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_STUDY_STATISTICS_H_
#define TANDEM_TOOLS_STUDY_STATISTICS_H_

#include <cstddef>

#include "absl/types/span.h"

namespace tandem::study {

// With fewer seeds than this, only large effects are resolved.
inline constexpr size_t kEnoughSeeds = 5;

// The value that a t distribution with `degrees` degrees of freedom stays below with probability
// `p`. Requires: degrees >= 1, 0 < p < 1. (Boost.Math.)
double TQuantile(double p, double degrees);

// The spread of the values of one variation. Without values all fields are 0.
struct Spread {
  size_t count = 0;
  double mean = 0;
  double deviation = 0;      // sample deviation, divisor count - 1; 0 below two values
  double low = 0, high = 0;  // 95 % interval of the mean; equals the mean below two values
  double min = 0, max = 0;
};
Spread SpreadOf(absl::Span<const double> values);
// The spread of values that are never negative, such as seconds and speeds. The mean is geometric,
// and the interval is that of the mean of the logarithms, so that it stays above 0. Requires:
// values above 0.
Spread SpreadOfPositive(absl::Span<const double> values);

// How `a` differs from `b`. The values of both are by seed, in the same order.
struct Effect {
  size_t seeds = 0;
  double mean = 0;           // mean of a - b, or of a / b for ratios
  double low = 0, high = 0;  // 95 % interval; equals the mean below two seeds
  // The interval does not contain "no effect" (0, or 1 for ratios). Always false below two seeds.
  // Also false below kEnoughSeeds if all differences are equal, because such an interval has no
  // width.
  bool resolved = false;
  bool enough = false;  // there are at least kEnoughSeeds seeds
};
// The effect as a difference. Requires: equally many values.
Effect DifferenceOf(absl::Span<const double> a, absl::Span<const double> b);
// The effect as a factor. Mean and interval are geometric: those of the difference of logarithms.
// Requires: equally many values, all above 0.
Effect RatioOf(absl::Span<const double> a, absl::Span<const double> b);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_STATISTICS_H_
