// Barriers among workers, by name. A name is used once in a job (workers add a number: "evaluate
// 3"). The action of the entries says what the scheduler does before the release.
//
// Entering is idempotent. A worker repeats its entry until the release arrives; an entry that comes
// after the release gets the same release again. This class is pure state: the core performs the
// action (SchedulerCore::CompleteBarrier). Memory: at most kMaxOpen open barriers a worker, and the
// last kRemembered releases.
#ifndef TANDEM_SCHEDULER_STATE_BARRIERS_H_
#define TANDEM_SCHEDULER_STATE_BARRIERS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/wire.pb.h"
#include "scheduler/observe/report_check.h"

namespace tandem::scheduler {

struct Barrier {
  int parties = 0;
  BarrierEnter::Action action = BarrierEnter::NONE;
  std::string path;    // for a CHECKPOINT and for marks
  std::string folder;  // for marks, once complete: the folder of the checkpoint
  bool may_fail = false;
  bool absent_may_be_replaced = false;
  std::string failure;      // for CHECKPOINT and COMMITTED: the first error, empty if there is none
  bool no_room = false;     // ... and no error had another cause than a full disk
  bool again = false;       // BarrierRelease.again
  int64_t part_bytes = 0;   // for marks: the sum of those of the entries
  int64_t free_bytes = -1;  // for marks: as in the entry of rank 0; -1: not known
  int64_t max_value = 0;
  std::map<int, ProgramValues> values;  // by rank
  std::string evaluation_json;          // as in the entry of rank 0
  std::vector<bool> entered;            // by rank
  std::vector<absl::Time> entered_at;   // by rank
  int entries = 0;
  absl::Time first_entry;
  bool complete = false;   // all parties have entered; the action is in progress
  absl::Time next_report;  // when to log again that it takes long

  // Adds an error of a CHECKPOINT or of a commit.
  void AddFailure(const std::string& what, bool is_no_room) {
    no_room = is_no_room && (no_room || failure.empty());
    if (failure.empty()) failure = what;
  }
  // Ranks that have not entered. With fewer parties than workers, any of them may be the missing
  // ones.
  std::vector<int> MissingRanks() const;
};

// Whether the servers mark their ranges for a checkpoint before the release.
bool IsMark(BarrierEnter::Action action);

class Barriers {
 public:
  static constexpr int kMaxOpen = 4;  // open barriers a worker, on average
  static constexpr size_t kRemembered = 256;
  static constexpr size_t kMaxNameBytes = 512;
  static constexpr size_t kMaxPathBytes = 4096;
  static constexpr size_t kMaxEvaluationBytes = ReportCheck::kMaxEvaluationBytes;

  enum class Entry {
    kWaiting,   // not all parties have entered, or this entry is a repetition
    kComplete,  // this entry was the last one
    kReleased,  // the barrier was released before: send the worker the release again
  };

  explicit Barriers(int workers) : workers_(workers) {}

  // INVALID_ARGUMENT if the entry is malformed or contradicts an earlier one.
  absl::StatusOr<Entry> Enter(absl::Time now, int rank, const BarrierEnter& enter);

  // Enters the open barrier `name` for a worker that has died. The answer is as that of Enter.
  Entry EnterForAbsent(absl::Time now, int rank, const std::string& name);

  // Ends the barrier `name`. Requires: the barrier is open. `record`: the run record in the release
  // of a CHECKPOINT barrier.
  BarrierRelease Release(const std::string& name, const std::string& record = "");

  // The release of a barrier that has been released. Requires: Enter said kReleased.
  BarrierRelease Released(const std::string& name) const;

  // The scheduler was paused for this long and could not see entries. The pause does not count as
  // waiting.
  void Forgive(absl::Duration pause) {
    for (auto& [name, barrier] : open_) {
      barrier.first_entry += pause;
      for (absl::Time& entered : barrier.entered_at) entered += pause;
    }
  }

  // The open barriers, by name. OverdueWatch sets `next_report`.
  std::map<std::string, Barrier>& open() { return open_; }
  const std::map<std::string, Barrier>& open() const { return open_; }

 private:
  absl::Status Check(int rank, const BarrierEnter& enter) const;
  // INVALID_ARGUMENT if the entry contradicts earlier ones of the same barrier.
  absl::Status CheckAgreement(const Barrier& barrier, const BarrierEnter& enter) const;
  static absl::Status CheckValuesOf(int rank, const Barrier& barrier, const BarrierEnter& enter);
  int PartiesOf(const BarrierEnter& enter) const {
    return enter.parties() == 0 ? workers_ : enter.parties();
  }

  const int workers_;
  std::map<std::string, Barrier> open_;
  std::deque<BarrierRelease> released_;  // newest last
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_BARRIERS_H_
