#include "job/schedule_check.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "job/refuse.h"
#include "optim/schedule.h"

namespace tandem::job {
namespace {

// The nominal samples of train.max_steps; 0: the job has no such limit.
int64_t SamplesOfMaxSteps(const Job& job) {
  const int64_t step = int64_t{job.train().batch_size()} * job.cluster().workers();
  if (job.train().max_steps() > std::numeric_limits<int64_t>::max() / std::max<int64_t>(1, step)) {
    return std::numeric_limits<int64_t>::max();
  }
  return job.train().max_steps() * step;
}

bool HasEnd(const Schedule& schedule) {
  return schedule.kind() == Schedule::POLYNOMIAL ||
         (schedule.kind() == Schedule::COSINE && schedule.restart_samples() == 0);
}

void FillSchedule(const Job& job, Optimizer* optimizer) {
  if (!optimizer->has_schedule()) return;
  Schedule* const schedule = optimizer->mutable_schedule();
  if (schedule->kind() == Schedule::SCHEDULE_UNSPECIFIED) schedule->set_kind(Schedule::CONSTANT);
  if (HasEnd(*schedule) && schedule->total_samples() == 0) {
    schedule->set_total_samples(SamplesOfMaxSteps(job));
  }
}

}  // namespace

void FillSchedules(Job* job) {
  FillSchedule(*job, job->mutable_dense()->mutable_optimizer());
  for (Table& table : *job->mutable_table()) {
    if (table.has_optimizer()) FillSchedule(*job, table.mutable_optimizer());
  }
}

absl::Status CheckSchedule(const std::string& path, const Optimizer& optimizer, const Job& job) {
  if (!optimizer.has_schedule()) return absl::OkStatus();
  const Schedule& schedule = optimizer.schedule();
  if (HasEnd(schedule) && schedule.total_samples() == 0) {
    return Refuse(absl::StrCat(path, ".schedule.total_samples"), "not set, and ",
                  Schedule::Kind_Name(schedule.kind()),
                  " needs its end; set it to the samples of all epochs, or set train.max_steps");
  }
  if (const absl::Status valid = optim::Schedule::New(schedule).status(); !valid.ok()) {
    return Refuse(absl::StrCat(path, ".schedule"), valid.message());
  }
  const int64_t trained = SamplesOfMaxSteps(job);
  if (trained == 0) return absl::OkStatus();
  if (schedule.warmup_samples() >= trained) {
    return Refuse(absl::StrCat(path, ".schedule.warmup_samples"), schedule.warmup_samples(),
                  ", but the job ends after ", trained, " samples (train.max_steps ",
                  job.train().max_steps(), "); shorten the warm-up");
  }
  if (schedule.total_samples() > 0 && schedule.total_samples() < trained) {
    return Refuse(absl::StrCat(path, ".schedule.total_samples"), schedule.total_samples(),
                  ", but the job trains ", trained, " samples (train.max_steps ",
                  job.train().max_steps(),
                  "), and the rate would stay at its end; leave it out, which ends the schedule "
                  "with the job");
  }
  return absl::OkStatus();
}

}  // namespace tandem::job
