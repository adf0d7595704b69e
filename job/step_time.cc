#include "job/step_time.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "job/refuse.h"

namespace tandem::job {

int StepTimeOf(const Job& job, int rank) {
  for (int i = job.fault_injection().slow_workers_size() - 1; i >= 0; --i) {
    const auto& named = job.fault_injection().slow_workers(i).worker();
    if (named.empty() || std::find(named.begin(), named.end(), rank) != named.end()) return i;
  }
  return -1;
}

StepTimes::StepTimes(const SlowWorkers& entry, uint64_t seed, int rank, int workers,
                     std::shared_ptr<const std::vector<double>> trace)
    : any_(true),
      entry_(entry),
      seed_(HashCombine(HashCombine(seed, HashName("step time")), static_cast<uint64_t>(rank))),
      trace_(std::move(trace)) {
  TANDEM_CHECK(rank >= 0 && rank < workers);
  entry_.clear_worker();  // each worker would copy the names of all: quadratic
  if (entry.distribution() != SlowWorkers::TRACE) return;
  TANDEM_CHECK(trace_ != nullptr && !trace_->empty());
  first_line_ = static_cast<size_t>(rank) * trace_->size() / static_cast<size_t>(workers);
}

absl::Duration StepTimes::Of(int64_t step) const {
  if (!any_) return absl::ZeroDuration();
  Random random(HashCombine(seed_, static_cast<uint64_t>(step)));
  double seconds = random.Bernoulli(entry_.slow_share()) ? entry_.slow_factor() : 1.0;
  if (entry_.distribution() != SlowWorkers::TRACE) seconds *= entry_.mean_seconds();
  switch (entry_.distribution()) {
    case SlowWorkers::EXPONENTIAL:
      seconds *= random.Exponential();
      break;
    case SlowWorkers::LOGNORMAL:  // mean 1, because e^(s z) has the mean e^(s^2 / 2)
      seconds *= std::exp(entry_.sigma() * random.Normal() - entry_.sigma() * entry_.sigma() / 2);
      break;
    case SlowWorkers::TRACE:
      seconds *= (*trace_)[(first_line_ + static_cast<size_t>(step)) % trace_->size()];
      break;
    default:  // CONSTANT
      break;
  }
  return absl::Seconds(std::min(seconds, kLongestServiceSeconds));
}

absl::StatusOr<std::vector<double>> ParseServiceTrace(absl::string_view text,
                                                      absl::string_view file_name) {
  std::vector<double> seconds;
  absl::ConsumeSuffix(&text, "\n");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    double value = 0;
    const bool number = absl::SimpleAtod(line, &value);
    if (!number || !(value >= 0 && value <= kLongestServiceSeconds)) {
      const bool nothing = text.empty();
      return absl::InvalidArgumentError(absl::StrCat(
          file_name, ":", seconds.size() + 1, ": ",
          nothing ? "an empty file" : Quoted(line.substr(0, 40)), ", expected seconds from 0 to ",
          kLongestServiceSeconds, ", such as 0.025",
          nothing ? ", a step a line" : "; a trace has one number a line and nothing else"));
    }
    seconds.push_back(value);
  }
  return seconds;
}

std::string DescribeStepTimes(const Job& job) {
  std::vector<std::string> parts;
  for (const SlowWorkers& entry : job.fault_injection().slow_workers()) {
    std::string part = entry.worker().empty()
                           ? "all workers"
                           : absl::StrCat(entry.worker_size() == 1 ? "worker " : "workers ",
                                          absl::StrJoin(entry.worker(), ", "));
    absl::StrAppend(&part, " ", SlowWorkers::Distribution_Name(entry.distribution()), " ");
    if (entry.distribution() == SlowWorkers::TRACE) {
      absl::StrAppend(&part, entry.trace());
    } else {
      absl::StrAppend(&part, entry.mean_seconds(), " s");
    }
    if (entry.slow_share() > 0) {
      absl::StrAppend(&part, ", a share of ", entry.slow_share(), " of the steps x ",
                      entry.slow_factor());
    }
    parts.push_back(std::move(part));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace tandem::job
