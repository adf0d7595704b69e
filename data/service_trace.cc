#include "data/service_trace.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "data/files.h"

namespace tandem::data {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{16} << 20;  // size of a trace: a million steps

// Refuses a step beyond the stall limit. Such a step would end the job with a reason that the user
// does not expect.
absl::Status CheckStallLimit(const job::ResolvedJob& plan, const SlowWorkers& entry,
                             const std::string& knob, const std::string& file,
                             const std::vector<double>& trace) {
  const double limit = plan.job.limits().stall_timeout_seconds();
  const double slow = entry.slow_share() > 0 ? std::max(1.0, entry.slow_factor()) : 1.0;
  for (size_t line = 0; line < trace.size(); ++line) {
    if (trace[line] * slow < limit) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(knob, ": ", file, ":", line + 1, ": a step of ", trace[line] * slow,
                     " s, expected less than limits.stall_timeout_seconds, ", limit,
                     "; hint: raise that limit"));
  }
  return absl::OkStatus();
}

// Reads the trace of entry `index`. Empty if the entry names no trace.
absl::StatusOr<std::vector<double>> ReadTrace(const job::ResolvedJob& plan, int index) {
  const SlowWorkers& entry = plan.job.fault_injection().slow_workers(index);
  if (entry.trace().empty()) return std::vector<double>();
  const std::string knob = absl::StrCat("fault_injection.slow_workers[", index, "].trace");
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, ExpandFiles(knob, entry.trace()));
  if (files.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(knob, ": ", files.size(), " files match '", entry.trace(), "', expected one"));
  }
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(files[0], error);
  if (error || bytes > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(knob, ": ", files[0], ": ",
                     error ? error.message() : absl::StrCat("a file of ", bytes, " bytes"),
                     ", expected a file of at most ", kMaxBytes, " bytes"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(files[0]));
  absl::StatusOr<std::vector<double>> trace = job::ParseServiceTrace(text, files[0]);
  if (!trace.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(knob, ": ", trace.status().message()));
  }
  TANDEM_RETURN_IF_ERROR(CheckStallLimit(plan, entry, knob, files[0], *trace));
  return trace;
}

}  // namespace

absl::StatusOr<job::StepTimes> OpenStepTimes(const job::ResolvedJob& plan, uint64_t seed,
                                             int rank) {
  const int index = job::StepTimeOf(plan.job, rank);
  if (index < 0) return job::StepTimes();
  TANDEM_ASSIGN_OR_RETURN(std::vector<double> trace, ReadTrace(plan, index));
  return job::StepTimes(plan.job.fault_injection().slow_workers(index), seed, rank, plan.workers(),
                        std::make_shared<const std::vector<double>>(std::move(trace)));
}

absl::StatusOr<std::vector<job::StepTimes>> OpenStepTimesOfAll(const job::ResolvedJob& plan,
                                                               uint64_t seed) {
  std::vector<std::shared_ptr<const std::vector<double>>> traces;  // by entry
  for (int i = 0; i < plan.job.fault_injection().slow_workers_size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<double> trace, ReadTrace(plan, i));
    traces.push_back(std::make_shared<const std::vector<double>>(std::move(trace)));
  }
  std::vector<job::StepTimes> times(static_cast<size_t>(plan.workers()));
  for (int rank = 0; rank < plan.workers(); ++rank) {
    const int index = job::StepTimeOf(plan.job, rank);
    if (index < 0) continue;
    times[static_cast<size_t>(rank)] =
        job::StepTimes(plan.job.fault_injection().slow_workers(index), seed, rank, plan.workers(),
                       traces[static_cast<size_t>(index)]);
  }
  return times;
}

absl::Status CheckServiceTraces(const job::ResolvedJob& plan) {
  for (int i = 0; i < plan.job.fault_injection().slow_workers_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(ReadTrace(plan, i).status());
  }
  return absl::OkStatus();
}

}  // namespace tandem::data
