// What a few runs can show. Effects are paired: the difference of two variations is taken seed by seed,
// so that what a seed does to both falls out, and a 95 % interval is put round its mean by Student's t.
//
// Nothing is ranked that is not resolved: an effect whose interval holds 0.
//
// Pure; any thread.
#ifndef TANDEM_STUDY_STATISTICS_H_
#define TANDEM_STUDY_STATISTICS_H_

#include <cstddef>

#include "absl/types/span.h"

namespace tandem::study {

// Fewer seeds than this show only what is beyond doubt.
inline constexpr size_t kEnoughSeeds = 5;

// The value that a t distribution with `degrees` of freedom stays below with chance `p`. Requires:
// degrees >= 1, 0 < p < 1. (Boost.Math.)
double TQuantile(double p, double degrees);

// Values of one variation. Of no values all is 0.
struct Spread {
  size_t count = 0;
  double mean = 0;
  double deviation = 0;      // of the sample: divided by count - 1; 0 below two values
  double low = 0, high = 0;  // 95 % interval of the mean; both the mean below two values
  double min = 0, max = 0;
};
Spread SpreadOf(absl::Span<const double> values);
// Of what is never negative, such as seconds and speeds: the mean is geometric, and its interval that of
// the mean of the logarithms, so that it stays above 0. Requires: values above 0.
Spread SpreadOfPositive(absl::Span<const double> values);

// How a differs from b, both by seed in the same order.
struct Effect {
  size_t seeds = 0;
  double mean = 0;           // of a - b, or a / b for ratios
  double low = 0, high = 0;  // 95 % interval; both the mean below two seeds
  // The interval does not hold "no effect" (0, or 1 for ratios). Never below two seeds, and below
  // kEnoughSeeds never where all are the same: such an interval has no width.
  bool resolved = false;
  bool enough = false;  // kEnoughSeeds or more
};
// Requires: equally many values.
Effect DifferenceOf(absl::Span<const double> a, absl::Span<const double> b);
// Geometric: the interval is that of the difference of logarithms. Requires: values above 0.
Effect RatioOf(absl::Span<const double> a, absl::Span<const double> b);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_STATISTICS_H_
