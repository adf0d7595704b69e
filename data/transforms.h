// What becomes of the numbers of DELIMITED columns between the file and the model, and the means and
// deviations that this needs.
//
// A number goes through fill (if it is missing), clip, log and scale, in this order. A missing number
// that nothing fills counts in no mean, and is 0 in the end: the mean, if the column is standardised.
#ifndef TANDEM_DATA_TRANSFORMS_H_
#define TANDEM_DATA_TRANSFORMS_H_

#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::data {

// What the job says of the column `name`; an empty rule if nothing.
Column RuleOf(const Columns& columns, const std::string& name);

// Whether the numbers of the column are standardised, with the defaults of job.proto.
bool IsStandardised(const Columns& columns, const Column& rule);

// The way of one column's numbers.
class NumberTransform {
 public:
  NumberTransform(const Columns& columns, const Column& rule);

  bool standardises() const { return standardise_; }
  void set_statistics(const ColumnStatistics& statistics) { statistics_ = statistics; }

  // Fill, clip and log; `x` is finite, or NaN if the cell is missing, and so is the result.
  double Unscaled(double x) const;
  // Scale, from what Unscaled has given, and 0 for NaN. Finite.
  float Scaled(double unscaled) const;

 private:
  bool log_ = false, standardise_ = false;
  absl::optional<double> fill_;
  double clip_min_ = -std::numeric_limits<double>::infinity();
  double clip_max_ = std::numeric_limits<double>::infinity();
  absl::optional<ColumnStatistics> statistics_;  // none: numbers stay unscaled
};

// Means and deviations of several columns in one pass, row after row, in doubles (Welford 1962): the
// bits follow from the rows and their order alone.
class ColumnMoments {
 public:
  explicit ColumnMoments(std::vector<std::string> names) : names_(std::move(names)) {
    moments_.resize(names_.size());
  }
  // What Unscaled has given, one a column; NaN counts nowhere.
  void Add(absl::Span<const double> values);
  DataStatistics Finish() const;

 private:
  struct Moments {
    int64_t values = 0;
    double mean = 0, squares = 0;  // sum of squared distances from the mean
  };
  const std::vector<std::string> names_;
  std::vector<Moments> moments_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_TRANSFORMS_H_
