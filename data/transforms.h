// Transforms the numbers of DELIMITED columns between the file and the model, and measures the
// means and deviations for that.
//
// A number passes through fill (if it is missing), clip, log and scale, in this order. A missing
// number without `fill` does not count in the mean. The model sees it as 0, which is the mean if
// the column is standardised.
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

// The rule of the column `name` in the job; an empty rule if there is none.
Column RuleOf(const Columns& columns, const std::string& name);

// Whether the numbers of the column are standardised, with the defaults of job.proto.
bool IsStandardised(const Columns& columns, const Column& rule);

// The transform of one column's numbers.
class NumberTransform {
 public:
  NumberTransform(const Columns& columns, const Column& rule);

  bool standardises() const { return standardise_; }
  void set_statistics(const ColumnStatistics& statistics) { statistics_ = statistics; }

  // Applies fill, clip and log. `x` is finite, or NaN if the cell is missing. The same holds for
  // the result.
  double Unscaled(double x) const;
  // Applies scale to a result of Unscaled. 0 for NaN. The result is finite.
  float Scaled(double unscaled) const;

 private:
  bool log_ = false, standardise_ = false;
  absl::optional<double> fill_;
  double clip_min_ = -std::numeric_limits<double>::infinity();
  double clip_max_ = std::numeric_limits<double>::infinity();
  absl::optional<ColumnStatistics> statistics_;  // none: numbers stay unscaled
};

// The transforms of columns.numeric, in this order. With `statistics` they standardise where the
// job asks for it. INVALID_ARGUMENT if the statistics lack such a column.
absl::StatusOr<std::vector<NumberTransform>> TransformsOf(const Columns& columns,
                                                          const DataStatistics* statistics);

// Means and deviations of several columns in one pass, row after row, in doubles (Welford 1962).
// The bits depend only on the rows and their order.
class ColumnMoments {
 public:
  explicit ColumnMoments(std::vector<std::string> names) : names_(std::move(names)) {
    moments_.resize(names_.size());
  }
  // Adds one row: a result of Unscaled for each column. NaN does not count.
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
