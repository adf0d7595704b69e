// Step times: workers that are made slow on purpose (SlowWorkers in proto/job.proto). A service
// time is the least time that a step's computation takes. A live worker sleeps for the rest of that
// time. The simulator advances its clock by it.
//
// Each time is drawn from the worker's seed and the step's number, not from a generator with a
// state. Step k of a worker therefore takes the same time in every run with the same seed, whatever
// steps came before it, and a resumed run has nothing to restore.
//
// Thread safety: values and pure functions. Files are not read here: data/service_trace.h.
#ifndef TANDEM_JOB_STEP_TIME_H_
#define TANDEM_JOB_STEP_TIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace tandem::job {

// The longest step time. No drawn time exceeds it, and a mean or a line of a trace must not.
inline constexpr double kLongestServiceSeconds = 3600;

// The index of the entry that holds for a worker: the last one that names the worker or names
// nobody. -1: there is none.
int StepTimeOf(const Job& job, int rank);

// The step times of one worker's steps.
class StepTimes {
 public:
  // A worker that is not slowed down.
  StepTimes() = default;
  // The times of worker `rank` of `workers`. `entry` is an entry of a resolved job. `trace` is in
  // seconds; it must be there, and not empty, if the distribution is TRACE. Workers may share it.
  StepTimes(const SlowWorkers& entry, uint64_t seed, int rank, int workers,
            std::shared_ptr<const std::vector<double>> trace);

  bool any() const { return any_; }
  // The least time that step `step` takes. Steps count from 0 over all epochs.
  absl::Duration Of(int64_t step) const;

 private:
  bool any_ = false;
  SlowWorkers entry_;
  uint64_t seed_ = 0;      // seed of this worker
  size_t first_line_ = 0;  // line of the trace for step 0
  std::shared_ptr<const std::vector<double>> trace_;
};

// Parses the seconds of a trace file, one number in each line. INVALID_ARGUMENT "FILE:3: ..." for
// any other line.
absl::StatusOr<std::vector<double>> ParseServiceTrace(absl::string_view text,
                                                      absl::string_view file_name);

// The step times of a job in words, for the log of a run: "worker 2 CONSTANT 0.03 s". Entries
// are separated by semicolons.
std::string DescribeStepTimes(const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_STEP_TIME_H_
