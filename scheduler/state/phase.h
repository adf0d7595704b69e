// The phases of a job, as its scheduler sees them (scheduler_core.h).
#ifndef TANDEM_SCHEDULER_STATE_PHASE_H_
#define TANDEM_SCHEDULER_STATE_PHASE_H_

namespace tandem::scheduler {

enum class Phase { kRegistering, kStarting, kRunning, kStopping, kFinished, kFailing, kFailed };

// Whether the job has ended, or must.
inline bool HasEnded(Phase phase) { return phase >= Phase::kFinished; }

// The name that people read: "running".
inline const char* NameOf(Phase phase) {
  switch (phase) {
    case Phase::kRegistering:
      return "registering";
    case Phase::kStarting:
      return "starting";
    case Phase::kRunning:
      return "running";
    case Phase::kStopping:
      return "stopping";
    case Phase::kFinished:
      return "finished";
    case Phase::kFailing:
    case Phase::kFailed:
      return "failing";
  }
  return "";
}

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_PHASE_H_
