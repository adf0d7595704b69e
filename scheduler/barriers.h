// Barriers among workers, by name. A name is used once in a job (workers count: "evaluate 3"); what
// the scheduler does before the release is in the entries' action.
//
// Entering is idempotent: a worker repeats its entry until the release arrives, and an entry that
// comes after the release is answered with the same release again. Pure; the core decides what
// happens between the last entry and the release.
// Memory: at most kMaxOpen open barriers a worker and the last kRemembered releases.
#ifndef TANDEM_SCHEDULER_BARRIERS_H_
#define TANDEM_SCHEDULER_BARRIERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

struct Barrier {
  int parties = 0;
  BarrierEnter::Action action = BarrierEnter::NONE;
  std::string path;  // of a SAVE
  bool may_fail = false;
  std::string failure;  // of a SAVE that may fail: what could not be written first
  int64_t max_value = 0;
  std::vector<bool> entered;           // by rank
  std::vector<absl::Time> entered_at;  // by rank
  int entries = 0;
  absl::Time first_entry;
  bool complete = false;   // all parties are in; what must precede the release is under way
  absl::Time next_report;  // when to log that it takes long

  // Ranks not in. With fewer parties than workers these are the ones that may be meant.
  std::vector<int> MissingRanks() const;
};

class Barriers {
 public:
  static constexpr int kMaxOpen = 4;  // per worker, on average
  static constexpr size_t kRemembered = 256;
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxPathBytes = 4096;

  enum class Entry {
    kWaiting,   // not all are in, or this entry is a repetition
    kComplete,  // this entry was the last one
    kReleased,  // released before: send the worker its release again
  };

  explicit Barriers(int workers) : workers_(workers) {}

  // INVALID_ARGUMENT if the entry is malformed or contradicts an earlier one.
  absl::StatusOr<Entry> Enter(absl::Time now, int rank, const BarrierEnter& enter);

  // Ends the barrier `name`. Requires: it is open. `record`: of a SAVE, for its release.
  BarrierRelease Release(const std::string& name, const std::string& record = "");

  // The release of a barrier that has been released. Requires: Enter said kReleased.
  BarrierRelease Released(const std::string& name) const;

  // Nobody could enter for this long: it counts as no wait.
  void Forgive(absl::Duration pause) {
    for (auto& [name, barrier] : open_) {
      barrier.first_entry += pause;
      for (absl::Time& entered : barrier.entered_at) entered += pause;
    }
  }

  // By name; the core keeps `next_report`.
  std::map<std::string, Barrier>& open() { return open_; }
  const std::map<std::string, Barrier>& open() const { return open_; }

 private:
  absl::Status Check(int rank, const BarrierEnter& enter) const;
  // INVALID_ARGUMENT if the entry does not mean the same as those before it.
  absl::Status CheckAgreement(const Barrier& barrier, const BarrierEnter& enter) const;
  int PartiesOf(const BarrierEnter& enter) const {
    return enter.parties() == 0 ? workers_ : enter.parties();
  }

  const int workers_;
  std::map<std::string, Barrier> open_;
  std::deque<BarrierRelease> released_;  // newest last
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_BARRIERS_H_
