// The flags that all roles share, and what the roles derive from them: the plan of the job, an
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
#include "job/silence_times.h"
#include "node/node_session.h"
#include "transport/job_keys.h"
#include "transport/path_log.h"

namespace tandem::node {

// Exit codes of all programs.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;    // the job failed
inline constexpr int kExitBadInput = 2;  // flags, job or data are wrong; nothing was started
// Added to the number of a signal: the program must end by this signal (DieBySignal).
inline constexpr int kExitBySignal = 128;

struct RoleFlags {
  std::string job;                         // job file
  std::vector<std::string> set;            // path=value
  std::string scheduler;                   // servers and workers: the scheduler's address
  std::string bind = "tcp://127.0.0.1:*";  // where to listen
  std::string advertise;                   // host name for others, if `bind` names all hosts
  int index = -1;                          // requested server index or rank
  std::string out;                         // output folder
  int io_threads = 1;                      // of ZeroMQ
  // Of the job's token; null: it has none (node/job_token.h).
  std::shared_ptr<const transport::JobKeys> keys;
  bool encrypt_all = false;   // with keys: all connections, not only those to the scheduler
  job::SilenceTimes silence;  // of the job
};

// Converts "path=value" texts for the job parser. INVALID_ARGUMENT names a text without '='.
absl::StatusOr<job::Overrides> ParseOverrides(const std::vector<std::string>& texts);

// Reads the job file, applies the overrides and resolves the job. `resumed`: the job of a run that
// resumes, whose step counts stay (job::KeepStepCounts); null: none.
absl::StatusOr<job::ResolvedJob> PlanOf(const RoleFlags& flags, const Job* resumed = nullptr);

// A number that no other process has, from the system's entropy and not from the job's seed.
uint64_t NewIncarnation();

// The membership options that follow from the flags; the role adds the rest. `paths` records how
// the endpoints of this process reach others.
NodeSession::Options MemberOf(const RoleFlags& flags, const Cluster& cluster,
                              std::shared_ptr<transport::PathLog> paths);

// A flag that becomes true when the job must stop: at SIGINT, SIGTERM, SIGHUP (the terminal was
// closed) or SIGXCPU (the time limit of a batch system), from the first call on. If the caller
// ignores SIGHUP or SIGXCPU, as nohup does, it stays ignored. This flag and its neighbours are the
// only state that a program keeps outside its objects, because signal handlers can reach nothing
// else.
//
// A process that `tandem run` has started takes stop signals from `tandem run` alone. Reason:
// people and batch systems often signal all processes of a job at once, and servers that leave
// cannot write a checkpoint. Such a process passes SIGXCPU on to `tandem run`, because each process
// has its own limit of CPU time.
const std::atomic<bool>* StopSignal();
// The signal by which `tandem run` tells its scheduler to make a checkpoint and end the job.
// SIGTERM would not do: two pending signals of a kind become one, so another sender's pending
// SIGTERM would swallow this one.
inline constexpr int kDriverStops = SIGUSR2;
// The number of stop signals so far. Signals within a second of another count as the same one,
// because timeout(1) and managers of services and jobs signal a process and its group. SIGHUP and
// SIGXCPU count only as the first signal: the system repeats them, so they do not ask for haste.
const std::atomic<int>* StopSignals();
// The environment variable that tells a process the number of the process that started it.
inline constexpr char kDriverVariable[] = "TANDEM_DRIVER";
// The number of the last stop signal; 0: none has come.
int StopSignalNumber();
// Ends the process by the signal, so that its caller (such as a shell's loop) stops, too.
[[noreturn]] void DieBySignal(int signal);
// The number of SIGUSR1 signals so far. At SIGUSR1 `tandem run` and the scheduler make a
// checkpoint, and a worker writes what its collectives did.
const std::atomic<int>* CheckpointSignals();

// Prints "PROGRAM: message" on one line to stderr and returns the exit code for the status.
int Finish(const char* program, const absl::Status& status);

// Ends a role without waiting for its own threads that still read data or a checkpoint. Such a read
// may take hours, and nobody needs it when the job is over.
class RoleEnd {
 public:
  explicit RoleEnd(const char* program) : program_(program) {}

  // Call it when the job is over for this role and the others know it. If the process still runs
  // after `patience`, another thread prints the result and exits.
  void Begin(const absl::Status& how, absl::Duration patience = kPatience);
  // Returns the exit code, as node::Finish() does. Prints the error, unless it has been printed
  // already.
  int Finish(const absl::Status& how);

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(2);  // tandem run kills a second later

  const char* const program_;
  const std::shared_ptr<std::atomic<bool>> said_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_ROLE_FLAGS_H_
