// The barriers at which a worker waits for the others. The worker enters a barrier by name, repeats
// the entry to the scheduler until it is answered, and may continue when the scheduler releases it.
// A release carries the largest value that any worker entered with, so workers also use a barrier
// to agree on a step.
//
// Memory: the barriers at which this worker waits, and the last kRemembered that it has passed.
// Only the newest release keeps its run record.
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_WORKER_BARRIERS_H_
#define TANDEM_WORKER_WORKER_BARRIERS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

class WorkerBarriers {
 public:
  // A worker reads a release right away, and never that of a barrier passed long ago.
  static constexpr size_t kRemembered = 64;

  // An entry without an answer is sent again after `resend`.
  WorkerBarriers(int parties, absl::Duration resend) : parties_(parties), resend_(resend) {}

  // Enters with `value` if this worker has not entered yet. True once the barrier is released;
  // before that the scheduler does `action` (in the folder `path`, for a checkpoint).
  bool Pass(absl::Time now, const std::string& name, int64_t value,
            BarrierEnter::Action action = BarrierEnter::NONE, const std::string& path = "");
  // Like the other Pass, for any entry; fills in `parties`.
  bool Pass(absl::Time now, BarrierEnter entry);
  // The largest value of all workers. Requires: the barrier is released.
  int64_t MaxValue(const std::string& name) const { return ReleaseOf(name).max_value(); }
  const BarrierRelease& ReleaseOf(const std::string& name) const;

  // Ignores the release of a barrier that this worker has not entered.
  void OnRelease(const BarrierRelease& release);

  // Appends the entries that are due, ordered by name.
  void AppendDue(absl::Time now, std::vector<Control>* out);

  // The name of a barrier at which this worker waits; empty: none.
  absl::string_view WaitingAt() const;

  size_t remembered() const { return barriers_.size(); }

 private:
  struct Barrier {
    BarrierEnter entry;
    bool released = false;
    BarrierRelease release;
    absl::Time next_send;
  };

  const int parties_;
  const absl::Duration resend_;
  std::map<std::string, Barrier> barriers_;  // entered by this worker
  std::deque<std::string> released_;         // the released ones, the newest last
  int waiting_ = 0;                          // the number of unreleased ones
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_WORKER_BARRIERS_H_
