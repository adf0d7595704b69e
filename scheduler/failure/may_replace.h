// Decides whether a new process may take the place of a worker that has died, while the other
// processes of the job continue. Otherwise all roles start again from the newest checkpoint.
// docs/RECOVERY.md has the same cases for users.
//
// Pure functions; any thread.
#ifndef TANDEM_SCHEDULER_FAILURE_MAY_REPLACE_H_
#define TANDEM_SCHEDULER_FAILURE_MAY_REPLACE_H_

#include <string>

#include "absl/status/status.h"
#include "job/job.h"

namespace tandem::scheduler {

// The moment at which a worker has died.
struct WorkerDeath {
  int left = 0;               // how many workers may still be replaced (cluster.max_restarts)
  bool running = false;       // training has begun, and nothing ends the job
  bool comes_again = false;   // another process would fail in the same way (failure_judge.h)
  bool other_vacant = false;  // another worker has died, and its place is not taken yet
  bool other_failed = false;  // another process has reported a failure, so it ends, too
  // Workers wait in this barrier, which does not wait for a new process. Empty: in none.
  std::string barrier;
  bool commits = false;      // the worker has rank 0, and a checkpoint is being written
  bool place_known = false;  // the worker has reported a place where a new process could begin
};

// OK if workers of this job can be replaced at all. Otherwise the message gives the reason, as the
// end of a sentence: "the job is reproducible".
absl::Status MayReplaceWorkers(const job::ResolvedJob& plan);

// The same for one death.
absl::Status MayReplaceWorker(const job::ResolvedJob& plan, const WorkerDeath& death);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_FAILURE_MAY_REPLACE_H_
