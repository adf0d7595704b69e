// The flags that all roles share, and what the roles make of them: the plan of the job, an
// incarnation, and a flag that SIGINT and SIGTERM set.
#ifndef TANDEM_NODE_ROLE_FLAGS_H_
#define TANDEM_NODE_ROLE_FLAGS_H_

#include <signal.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "node/job_member.h"
#include "transport/path_log.h"

namespace tandem::node {

// Exit codes of all programs.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // the job failed
inline constexpr int kExitBadInput = 2;  // flags, job or data: nothing was started
// Added to the number of a signal: the program is to end by it (DieBySignal).
inline constexpr int kExitBySignal = 128;

struct RoleFlags {
  std::string job;                         // file
  std::vector<std::string> set;            // path=value
  std::string scheduler;                   // servers and workers: where the scheduler is
  std::string bind = "tcp://127.0.0.1:*";  // where to listen
  std::string advertise;                   // host that others use, if `bind` names all hosts
  int index = -1;                          // wanted server index or rank
  std::string out;                         // output folder
  int io_threads = 1;                      // of ZeroMQ
};

// "path=value" texts as the job parser wants them; INVALID_ARGUMENT names a text without '='.
absl::StatusOr<job::Overrides> ParseOverrides(const std::vector<std::string>& texts);

// Reads, overrides and resolves the job.
absl::StatusOr<job::JobPlan> PlanOf(const RoleFlags& flags);

// A number no other process has: from the system's entropy, not from the job's seed.
uint64_t NewIncarnation();

// What its flags say of this process's part in the job: all but what its shell adds. `paths`
// learns how its endpoints reach others.
JobMember::Options MemberOf(const RoleFlags& flags, const Cluster& cluster,
                            std::shared_ptr<transport::PathLog> paths);

// Set by SIGINT, SIGTERM, SIGHUP (the terminal was closed) and SIGXCPU (the time limit of a batch
// system) from the first call on. A SIGHUP or SIGXCPU that the caller ignores, as nohup does, stays
// ignored. The only state that a program keeps outside its objects: signal handlers can reach nothing
// else. A process that `tandem run` has started hears of them from it alone: whoever ends a job often
// signals all its processes at once, and servers that leave cannot save. Such a process passes SIGXCPU
// on to `tandem run`, because a limit of CPU time counts for each process by itself.
const std::atomic<bool>* StopSignal();
// What `tandem run` sends its scheduler to have the job saved and ended. Not SIGTERM: one of somebody
// else's that is not delivered yet would swallow it, since two of a kind are one.
inline constexpr int kDriverStops = SIGUSR2;
// How often they have come. What comes within a second of another is the same: timeout(1) and
// managers of services and jobs signal a process and its group. SIGHUP and SIGXCPU count only as the
// first one: they are repeated by the system, and are no request to hurry.
const std::atomic<int>* StopSignals();
// The variable by which a process knows that it was started by the one of this number.
inline constexpr char kDriverVariable[] = "TANDEM_DRIVER";
// Which of them came last; 0: none has.
int StopSignalNumber();
// Ends the process as the signal would have, so that whoever started it (a loop of a shell) stops, too.
[[noreturn]] void DieBySignal(int signal);
// How often SIGUSR1 has come (`tandem run` and the scheduler save then, a worker dumps what its
// collectives did).
const std::atomic<int>* SaveSignals();

// Prints "PROGRAM: message" on one line to stderr and returns the exit code for the status.
int Finish(const char* program, const absl::Status& status);

// The end of a role, which is not to wait for a thread of its own that still reads data or a checkpoint:
// that may take hours, and is of no use once the job is over.
class RoleEnd {
 public:
  explicit RoleEnd(const char* program) : program_(program) {}

  // Call when the job is over for this role, and the others have been told. If the process is still there
  // when `patience` is over, it finishes and exits from another thread.
  void Begin(const absl::Status& how, absl::Duration patience = kPatience);
  // The exit code, as Finish() has it. Says what failed, unless that has been said.
  int Finish(const absl::Status& how);

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(2);  // tandem run kills a second later

  const char* const program_;
  const std::shared_ptr<std::atomic<bool>> said_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_ROLE_FLAGS_H_
