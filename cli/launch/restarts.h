// Restarts decides whether a run goes on in a new attempt after a failure
// (cluster.max_restarts), and counts what that costs. An attempt is the time from the start of all
// roles to the end of all of them; a new attempt resumes from the newest whole checkpoint.
//
// Not here: how an attempt begins (attempts.h) and ends (supervisor.h).
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_RESTARTS_H_
#define TANDEM_CLI_LAUNCH_RESTARTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "scheduler/failure/restarts.h"

namespace tandem::cli {

// Why an attempt has ended.
struct AttemptFailure {
  std::string text;          // for people: "worker 1 (pid 123) was ended by signal 9 (Killed)"
  std::string error;         // the reason as the scheduler says it; empty: it has named none
  int64_t step = -1;         // that the failed worker had reached; -1: not known
  bool comes_again = false;  // a new attempt would fail in the same way (scheduler::ComesAgain)
  bool no_room = false;      // a disk is full
  bool began = false;        // all roles of the attempt had started (Supervisor::OnStarted)
  bool ending = false;       // the job was ending: at its end, or because a user asked for it
};

// The value of tandem-scheduler's flag --restarts, and back. INVALID_ARGUMENT: malformed.
std::string RestartsFlag(const scheduler::Restarts& restarts);
absl::StatusOr<scheduler::Restarts> ParseRestartsFlag(const std::string& flag);

class Restarts {
 public:
  // `most`: new attempts and replaced workers within an hour.
  explicit Restarts(int most) : most_(most) {}

  // Whether a new attempt follows. If not, why_not() says why, unless the job allows none at all.
  bool Allow(absl::Time now, const AttemptFailure& failure);
  const std::string& why_not() const { return why_not_; }
  // An attempt begins to train. `seconds`: since the start of the run. `since`: the time of day of
  // that start.
  void OnStarted(absl::Time now, double seconds, const std::string& since);
  // A checkpoint is on the disk.
  void OnSaved() {
    since_saved_ = 0;
    full_disk_ = false;
  }
  // A new attempt begins, in which workers do `steps_again` steps again from `step`.
  void Begin(absl::Time now, const AttemptFailure& failure, int64_t step, int64_t steps_again);
  // The attempt after Begin has not begun to train, because its checkpoint is damaged. The next one
  // resumes from the older step `step`.
  void OnPassedOver(int64_t step);
  // After Begin: `seconds` after the failure, all workers have finished a step. Returns the
  // `steps_again` of that restart.
  int64_t OnRecovered(double seconds);
  // In the running attempt a new process takes the place of `node`, which has died as `why` says
  // (scheduler/replacements.h). This counts as a restart. If the attempt fails before OnReplaced,
  // the replacement and the next attempt count as one. `step`: at which the worker has reported the
  // error `why`; -1: it has reported none.
  void BeginReplacement(absl::Time now, const std::string& node, const std::string& why,
                        int64_t step = -1);
  // After that: the new process trains. The other processes have not gone back.
  void OnReplaced(const std::string& node, double seconds, int64_t step, int64_t steps_again);

  // For the scheduler of the next attempt.
  scheduler::Restarts ForScheduler(absl::Time now) const;
  int count() const { return static_cast<int>(all_.size()); }
  int most() const { return most_; }
  // For the summary: an array with an object for each restart.
  nlohmann::json Summary() const;

 private:
  struct One {
    absl::Time at;
    std::string why;
    int64_t step = 0, steps_again = 0;
    std::string replaced;  // the process that was replaced; empty: all roles were started again
    double seconds = 0;    // 0: not recovered yet
  };
  int RecentOnes(absl::Time now) const;
  bool Repeats(const std::string& error, int64_t step);
  bool IsReplacing() const {
    return !all_.empty() && !all_.back().replaced.empty() && all_.back().seconds == 0;
  }

  const int most_;
  absl::optional<absl::Time> trains_since_;  // as in scheduler::Restarts
  std::string started_;
  int since_saved_ = 0;     // restarts since the last checkpoint
  bool full_disk_ = false;  // a full disk has caused one of them
  std::vector<One> all_;
  // Errors of workers without their numbers, and the step at which each has come last.
  std::map<std::string, int64_t> errors_;
  std::string why_not_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_RESTARTS_H_
