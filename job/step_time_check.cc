#include "job/step_time_check.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "job/refuse.h"
#include "job/step_time.h"

namespace tandem::job {
namespace {

// Checks that each named rank exists and is named once.
absl::Status CheckRanks(const std::string& path, const SlowWorkers& entry, int workers) {
  std::set<int> named;
  for (int i = 0; i < entry.worker_size(); ++i) {
    const std::string field = absl::StrCat(path, ".worker[", i, "]");
    const int rank = entry.worker(i);
    if (rank < 0 || rank >= workers) {
      return Refuse(field, rank, ", but cluster.workers is ", workers,
                    ", and ranks count from 0; say 0 to ", workers - 1,
                    ", or none for all workers");
    }
    if (!named.insert(rank).second) return Refuse(field, rank, " is named twice");
  }
  return absl::OkStatus();
}

// Refuses fields that need another one, and a distribution that lacks a field.
absl::Status CheckDistribution(const std::string& path, const SlowWorkers& entry) {
  const SlowWorkers::Distribution kind = entry.distribution();
  const std::string name = SlowWorkers::Distribution_Name(kind);
  if (entry.sigma() != 0 && kind != SlowWorkers::LOGNORMAL) {
    return Refuse(path + ".sigma", "only for LOGNORMAL, and the distribution is ", name);
  }
  if (entry.slow_share() == 0 && entry.slow_factor() != 0) {
    return Refuse(path + ".slow_factor",
                  "set without slow_share; for a worker that is always slow, name it with a larger "
                  "mean_seconds");
  }
  if (kind == SlowWorkers::TRACE) {
    if (entry.trace().empty()) {
      return Refuse(path + ".trace",
                    "not set; TRACE needs a file with the seconds of a step a line");
    }
    if (entry.mean_seconds() != 0) {
      return Refuse(path + ".mean_seconds", "not for TRACE, whose seconds are in the file");
    }
    return absl::OkStatus();
  }
  if (!entry.trace().empty()) {
    return Refuse(path + ".trace", "only for TRACE, and the distribution is ", name);
  }
  if (entry.mean_seconds() == 0) {
    return Refuse(path + ".mean_seconds", "not set; the seconds of a step, such as 0.02");
  }
  return absl::OkStatus();
}

// Refuses ordinary steps that are longer than the stall limit. Such a step would end the job with a
// reason that the user does not expect.
absl::Status CheckStallLimit(const std::string& path, const SlowWorkers& entry, double limit) {
  const double slow = entry.slow_share() > 0 ? std::max(1.0, entry.slow_factor()) : 1.0;
  if (entry.mean_seconds() * slow < limit) return absl::OkStatus();
  return Refuse(path + ".mean_seconds", "steps of ", entry.mean_seconds() * slow,
                " s, and limits.stall_timeout_seconds is ", limit,
                ", after which the job would end; raise that limit, or lower this");
}

// Refuses an entry that holds for no worker. The user wanted these workers to be slow, and they
// would not be.
absl::Status CheckHolds(const Job& job, int index) {
  for (int rank = 0; rank < job.cluster().workers(); ++rank) {
    if (StepTimeOf(job, rank) == index) return absl::OkStatus();
  }
  return Refuse(absl::StrCat("fault_injection.slow_workers[", index, "]"),
                "holds for no worker, because later entries replace it for all of its workers; put "
                "the entry for all workers first");
}

}  // namespace

absl::Status CheckStepTimes(const Job& job) {
  for (int i = 0; i < job.fault_injection().slow_workers_size(); ++i) {
    const std::string path = absl::StrCat("fault_injection.slow_workers[", i, "]");
    const SlowWorkers& entry = job.fault_injection().slow_workers(i);
    TANDEM_RETURN_IF_ERROR(CheckRanks(path, entry, job.cluster().workers()));
    TANDEM_RETURN_IF_ERROR(CheckDistribution(path, entry));
    TANDEM_RETURN_IF_ERROR(CheckStallLimit(path, entry, job.limits().stall_timeout_seconds()));
    TANDEM_RETURN_IF_ERROR(CheckHolds(job, i));
  }
  return absl::OkStatus();
}

}  // namespace tandem::job
