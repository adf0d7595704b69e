#include "data/transforms.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "data/cells.h"

namespace tandem::data {

Column RuleOf(const Columns& columns, const std::string& name) {
  for (const Column& column : columns.column()) {
    if (column.name() == name) return column;
  }
  return Column();
}

bool IsStandardised(const Columns& columns, const Column& rule) {
  const Column::Scale scale =
      rule.scale() != Column::SCALE_UNSPECIFIED ? rule.scale() : columns.scale();
  if (scale == Column::SCALE_UNSPECIFIED) return !columns.log_transform();
  return scale == Column::STANDARDISE;
}

NumberTransform::NumberTransform(const Columns& columns, const Column& rule)
    : log_(columns.log_transform() || rule.log()), standardise_(IsStandardised(columns, rule)) {
  if (rule.has_fill()) fill_ = rule.fill();
  if (rule.has_clip_min()) clip_min_ = rule.clip_min();
  if (rule.has_clip_max()) clip_max_ = rule.clip_max();
}

double NumberTransform::Unscaled(double x) const {
  if (std::isnan(x)) {
    if (!fill_.has_value()) return x;
    x = *fill_;
  }
  x = std::clamp(x, clip_min_, clip_max_);
  if (!log_) return x;
  // Numbers that are not standardised keep the value that they had before `scale` existed: the
  // logarithm of a float.
  return standardise_ ? std::copysign(std::log1p(std::fabs(x)), x)
                      : LogTransform(static_cast<float>(x));
}

float NumberTransform::Scaled(double unscaled) const {
  if (std::isnan(unscaled)) return 0;
  if (!statistics_.has_value()) return static_cast<float>(unscaled);
  if (statistics_->deviation() == 0) return 0;
  constexpr double kMax = std::numeric_limits<float>::max();
  const double scaled = (unscaled - statistics_->mean()) / statistics_->deviation();
  return static_cast<float>(std::clamp(scaled, -kMax, kMax));
}

absl::StatusOr<std::vector<NumberTransform>> TransformsOf(const Columns& columns,
                                                          const DataStatistics* statistics) {
  std::vector<NumberTransform> transforms;
  for (const std::string& name : columns.numeric()) {
    NumberTransform& transform = transforms.emplace_back(columns, RuleOf(columns, name));
    if (statistics == nullptr || !transform.standardises()) continue;
    const auto found =
        std::find_if(statistics->column().begin(), statistics->column().end(),
                     [&](const ColumnStatistics& column) { return column.name() == name; });
    if (found == statistics->column().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("data.statistics has no column ", Quote(name),
                       ", which is standardised; hint: leave data.statistics out of the job"));
    }
    transform.set_statistics(*found);
  }
  return transforms;
}

void ColumnMoments::Add(absl::Span<const double> values) {
  TANDEM_CHECK(values.size() == moments_.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    Moments& column = moments_[i];
    ++column.values;
    const double from_old = values[i] - column.mean;
    column.mean += from_old / static_cast<double>(column.values);
    column.squares += from_old * (values[i] - column.mean);
  }
}

DataStatistics ColumnMoments::Finish() const {
  DataStatistics statistics;
  for (size_t i = 0; i < moments_.size(); ++i) {
    const Moments& from = moments_[i];
    ColumnStatistics* const to = statistics.add_column();
    to->set_name(names_[i]);
    to->set_values(from.values);
    to->set_mean(from.mean);
    if (from.values == 0) continue;
    to->set_deviation(std::sqrt(from.squares / static_cast<double>(from.values)));
  }
  return statistics;
}

}  // namespace tandem::data
