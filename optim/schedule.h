// A schedule of the learning rate: the factor of the rate at each progress of a job. The message
// Schedule (proto/job.proto) says what the kinds are and in which unit progress is counted.
//
// A schedule keeps no state, so a resumed run, a replay and any number of servers have the same
// factors. Methods may run on many threads at once.
#ifndef TANDEM_OPTIM_SCHEDULE_H_
#define TANDEM_OPTIM_SCHEDULE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace tandem::optim {

class Schedule {
 public:
  // Null if the factor is always 1. INVALID_ARGUMENT names a field that is missing, out of range,
  // or of another kind. `total_samples` must be set if the kind has an end.
  static absl::StatusOr<std::unique_ptr<Schedule>> New(const tandem::Schedule& config);

  // `sample_clock`: policies::Update.
  float FactorAt(int64_t sample_clock) const;

 private:
  explicit Schedule(const tandem::Schedule& config) : config_(config) {}

  double AfterWarmup(double at, double samples) const;

  const tandem::Schedule config_;
};

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_SCHEDULE_H_
