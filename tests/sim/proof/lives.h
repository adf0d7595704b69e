// A run whose processes die, in attempts, until an attempt reaches the end of the job. After a
// death this class ends all processes and starts them again: another world (checked_world.h)
// resumes from the newest whole checkpoint, or begins anew if there is none. Files survive, memory
// does not. The next attempt may have another number of servers, shards and key ranges.
//
// Each world checks its attempt. This class checks across attempts:
//   (1) The attempt resumes from the newest whole checkpoint, never from a torn one. So workers
//       repeat only the steps that they did after that checkpoint.
//   (2) The rows of the checkpoint contain each update (worker, step, range) below its steps once,
//       except for the updates that it holds back. They contain no other update. The ledger returns
//       to these updates, so that later worlds check reads, evaluations and final rows against all
//       attempts (ledger.h).
//   (3) If the scheduler ends the attempt, it names the process that died or was away.
//   (4) A short absence does not end the attempt.
//   (5) No attempt ends well without a process that its job needs.
// With WorldOptions::replacements, the death of a worker does not end every attempt: a new process
// may take its place. The judge then checks that both processes train on the same rows, and that
// each range takes each step once (judge.h). If a replacement fails in an
// attempt with one accident, the scheduler must say that it knows no place where a new process
// could begin.
// A world has a limit of virtual time, so no wait is endless.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_LIVES_H_
#define TANDEM_TESTS_SIM_PROOF_LIVES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "base/random.h"
#include "job/job.h"
#include "proto/range_map.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/sim/proof/checked_world.h"
#include "tests/sim/proof/ledger.h"
#include "tests/sim/proof/sim_disk.h"
#include "tests/sim/proof/toy_model.h"

namespace tandem {

// An accident of one process in one attempt.
struct Accident {
  enum class Kind {
    kCrash,     // it dies; the supervisor sees the exit and ends the others soon after
    kReset,     // it dies; only its connections show it, and the scheduler ends the job
    kVanish,    // it dies with its host: nothing shows it but silence
    kStop,      // it is suspended for `length`
    kHoldUp,    // its messages to the scheduler are late by `length`: the link is half open
    kHoldDown,  // the same from the scheduler
  };
  Kind kind = Kind::kCrash;
  EndpointId process;
  uint64_t event = 0;  // after so many events of the attempt
  absl::Duration length;
  // Instead of `process` and `event`: this moment of write or commit `number` of the attempt,
  // counted from 0. The accident happens to the process that writes then.
  absl::optional<SimDisk::Moment> moment;
  int64_t number = 0;

  std::string DebugString() const;
};

class Lives {
 public:
  struct Options {
    CheckedWorldOptions
        world;           // of each attempt, with the toy model; the seed changes with the attempt
    std::string folder;  // an empty folder on disk; receives the checkpoints
    std::vector<Accident> accidents;  // by attempt; further attempts have none
    std::vector<Accident> more;       // in the first attempt, in order of their events
    // The plans of the second attempt, the third and so on. Further attempts use the last plan.
    // Empty: all attempts use the first plan. The plans differ only in fields that may change when
    // a run resumes.
    std::vector<job::ResolvedJob> later;
  };
  // `plan` must outlive this.
  Lives(const job::ResolvedJob& plan, Options options);

  // Runs attempts until one reaches the end of the job. The error names the failed check.
  absl::Status Run();

  CheckedWorld& world() { return *world_; }  // of the last attempt
  int64_t attempts() const { return attempt_ + 1; }
  int replaced() const { return replaced_; }            // workers whose new processes have trained
  int resumes() const { return resumes_; }              // attempts that began with a checkpoint
  int recuts() const { return recuts_; }                // ... with other key ranges
  int verdicts() const { return verdicts_; }            // attempts that the scheduler has ended
  int64_t steps_again() const { return steps_again_; }  // of all workers
  uint64_t trace_hash() const { return trace_hash_; }   // of all attempts

 private:
  using Rows = std::map<std::pair<uint32_t, uint64_t>, std::vector<float>>;  // by (table, key)
  using Versions = std::map<uint32_t, int64_t>;                              // by range

  const job::ResolvedJob& Plan() const;  // of this attempt
  absl::Status BeginAttempt();
  absl::Status Resume(CheckedWorldOptions* options);
  absl::Status ReturnTo(const server::CheckpointReader& saved, const RangeMap& map,
                        sim::ResumeFrom* from);
  absl::Status CheckRows(const server::CheckpointReader& saved, const Versions& versions,
                         Rows* rows);
  absl::Status CheckLives(const server::CheckpointReader& saved, const Versions& versions,
                          uint32_t table, uint64_t key, absl::Span<const float> row);
  absl::StatusOr<bool> RunAttempt();
  void Strike(const Accident& accident, EndpointId process);
  absl::StatusOr<bool> EndAttempt();

  const job::ResolvedJob& plan_;
  const Options options_;
  SimDisk disk_;
  OwnedFd kept_;  // keeps the checkpoint with which the attempt has begun, for new processes
  const std::shared_ptr<Ledger> ledger_;
  Random random_;
  int64_t attempt_ = 0;
  std::unique_ptr<CheckedWorld> world_;
  std::vector<int64_t> first_steps_;  // of this attempt, by rank
  // The next members describe the current attempt.
  bool struck_ = false;
  std::vector<EndpointId> victims_;  // who may be named as dead
  int died_ = 0;                     // the victims that are dead, not only silent
  bool leaves_ = false;              // it was at the end of the job, which may do without it
  absl::Duration length_;            // of its silence
  absl::Duration over_at_;           // the supervisor ends all processes
  int resumes_ = 0, recuts_ = 0, verdicts_ = 0, replaced_ = 0;
  uint64_t trace_hash_ = 0;
  int64_t steps_again_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_LIVES_H_
