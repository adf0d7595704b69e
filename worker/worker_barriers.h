// Where a worker meets the others: it enters a barrier by name, says so to the scheduler again and
// again, and may go on when the scheduler releases it. A release carries the largest value that
// any worker entered with, so a barrier is also how workers agree on a step.
//
// Memory: the barriers that this worker waits at, and the last kRemembered it has passed; the run
// record of the last one alone.
//
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
  // A worker looks at a release right away, and never at that of a barrier long passed.
  static constexpr size_t kRemembered = 64;

  // An entry that is not answered is sent again after `resend`.
  WorkerBarriers(int parties, absl::Duration resend) : parties_(parties), resend_(resend) {}

  // Enters with `value`, if it has not been entered. True once it is released; the scheduler does
  // `action` before that (to the folder `path`, if it is a save).
  bool Pass(absl::Time now, const std::string& name, int64_t value,
            BarrierEnter::Action action = BarrierEnter::NONE, const std::string& path = "");
  // The same for any entry; `parties` is filled in.
  bool Pass(absl::Time now, BarrierEnter entry);
  // The largest value of all workers. Requires: released.
  int64_t MaxValue(const std::string& name) const { return ReleaseOf(name).max_value(); }
  const BarrierRelease& ReleaseOf(const std::string& name) const;

  // One that this worker has not entered is ignored.
  void OnRelease(const BarrierRelease& release);

  // Appends the entries that are due, in order of their names.
  void AppendDue(absl::Time now, std::vector<Control>* out);

  // The name of one that this worker waits at; empty: none.
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
  std::map<std::string, Barrier> barriers_;  // entered
  std::deque<std::string> released_;         // of them, the newest last
  int waiting_ = 0;                          // of them not released
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_WORKER_BARRIERS_H_
