// Workers that are made slow on purpose (ServiceTime in proto/job.proto): how long each of their steps
// computes at least. A live worker sleeps for the rest of that time, and the simulator's clock goes on by it.
//
// Times are drawn by counters, not by a generator with a state: step k of a worker takes as long in every
// run of a seed, whatever steps came before it, and a run that goes on has nothing to remember.
//
// Thread safety: values and pure functions. Files are not read here: data/service_trace.h.
#ifndef TANDEM_JOB_SERVICE_TIME_H_
#define TANDEM_JOB_SERVICE_TIME_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace tandem::job {

// No step is drawn longer than this, nor may a mean or a line of a trace be.
inline constexpr double kLongestServiceSeconds = 3600;

// Index of the entry that holds for a worker, the last one that names it or names nobody; -1: none.
int ServiceTimeOf(const Job& job, int rank);

// The times of one worker's steps.
class ServiceTimes {
 public:
  // A worker that nobody slows down.
  ServiceTimes() = default;
  // Of worker `rank` of `workers`. `entry` is that of a resolved job; `trace` in seconds, there and not
  // empty if the distribution is TRACE. Workers may share it.
  ServiceTimes(const ServiceTime& entry, uint64_t seed, int rank, int workers,
               std::shared_ptr<const std::vector<double>> trace);

  bool any() const { return any_; }
  // What step `step` (from 0, over all epochs) takes at least.
  absl::Duration Of(int64_t step) const;

 private:
  bool any_ = false;
  ServiceTime entry_;
  uint64_t seed_ = 0;      // of this worker
  size_t first_line_ = 0;  // of the trace, for step 0
  std::shared_ptr<const std::vector<double>> trace_;
};

// The seconds of a trace file, a number a line. INVALID_ARGUMENT "FILE:3: ..." for what is none.
absl::StatusOr<std::vector<double>> ParseServiceTrace(absl::string_view text,
                                                      absl::string_view file_name);

// What a run says of its service times when it starts, an entry a part: "worker 2 CONSTANT 0.03 s".
std::string DescribeServiceTimes(const Job& job);

}  // namespace tandem::job

#endif  // TANDEM_JOB_SERVICE_TIME_H_
