#include "scheduler/observe/program_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "proto/program_note.h"

namespace tandem::scheduler {
namespace {

// For example "reports the mean of hr, ndcg".
std::string Describe(const ProgramValues& values) {
  if (values.value().empty()) return "waits in job.barrier()";
  const std::map<std::string, double> sorted(values.value().begin(), values.value().end());
  const auto name = [](std::string* out, const auto& value) { out->append(value.first); };
  return absl::StrCat("reports the ",
                      absl::AsciiStrToLower(ProgramValues::Reduction_Name(values.reduction())),
                      " of ", absl::StrJoin(sorted, ", ", name));
}

double Reduce(const std::map<int, ProgramValues>& by_rank, const std::string& name) {
  double result = std::numeric_limits<double>::quiet_NaN(), weights = 0;
  bool first = true;
  for (const auto& [rank, values] : by_rank) {
    const double weight = values.weight();
    if (weight == 0) continue;
    const double value = values.value().at(name);
    weights += weight;
    const bool means = values.reduction() == ProgramValues::MEAN;
    if (std::exchange(first, false)) {
      result = means ? value * weight : value;
    } else if (std::isnan(value) || std::isnan(result)) {
      result = std::numeric_limits<double>::quiet_NaN();
    } else if (values.reduction() == ProgramValues::MIN) {
      result = std::min(result, value);
    } else if (values.reduction() == ProgramValues::MAX) {
      result = std::max(result, value);
    } else {
      result += means ? value * weight : value;
    }
  }
  return !by_rank.empty() && by_rank.begin()->second.reduction() == ProgramValues::MEAN
             ? result / weights
             : result;
}

}  // namespace

absl::Status CheckValues(const ProgramValues& values) {
  for (const auto& [name, value] : values.value()) {
    TANDEM_RETURN_IF_ERROR(CheckReportedName(name));
  }
  if (values.value().empty() || values.value().size() > kMaxReported) {
    return absl::InvalidArgumentError(absl::StrCat("a report of ", values.value().size(),
                                                   " values, expected 1 to ", kMaxReported));
  }
  if (!ProgramValues::Reduction_IsValid(values.reduction()) ||
      values.reduction() == ProgramValues::REDUCTION_UNSPECIFIED) {
    return absl::InvalidArgumentError("a report for all workers without a reduction");
  }
  if (std::isfinite(values.weight()) && values.weight() >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a report of weight ", values.weight(), ", expected 0 or more"));
}

absl::Status CheckSameValues(int rank, const ProgramValues& values, int other,
                             const ProgramValues& others) {
  if (const std::string own = Describe(values), theirs = Describe(others); own != theirs) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", rank, " ", own, ", and worker ", other, " ", theirs,
                     "; all workers make these calls in the same order, with the same names"));
  }
  return absl::OkStatus();
}

std::map<std::string, double> ReduceValues(const std::map<int, ProgramValues>& by_rank) {
  std::map<std::string, double> reduced;
  if (by_rank.empty()) return reduced;
  for (const auto& [name, value] : by_rank.begin()->second.value()) {
    reduced[name] = Reduce(by_rank, name);
  }
  return reduced;
}

}  // namespace tandem::scheduler
