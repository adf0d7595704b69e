// What a range knows of the rows that workers keep (ESSP; client/row_cache.h): who keeps which, and
// which of them have changed since they were sent. When the smallest clock of the range has grown, each
// worker that keeps rows is sent those, in REFRESH frames (proto/frame.md).
//
// A row that the worker has pushed in its last step (kRefreshLag) waits for a later refresh: a row
// that is used at every step would be read, changed and sent at every step, and never be there in
// time. A read does not make a row one that is known to have been sent, since its answer may be lost.
//
// Of each worker at most so many rows are kept, those it has used last; of the others it is told that
// they are not kept any more, so both sides have the same: with the next refresh or, where that does not
// come since somebody is out of data, when they are half as many as may be kept.
//
// None of this moves or is saved with the range: its next owner begins anew, and says so (`view`).
// Cost: some 80 bytes a row and worker, and for each row of an update a look-up for each worker.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_SUBSCRIPTIONS_H_
#define TANDEM_SERVER_SUBSCRIPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::server {

class Subscriptions {
 public:
  // Of each worker at most `most` rows are kept; 0: any number.
  Subscriptions(int workers, size_t most);

  // The range has come here by this view, at this clock.
  void Begin(uint32_t view, int64_t clock) {
    view_ = view;
    clock_ = clock;
  }
  uint32_t view() const { return view_; }
  // The clock that kept rows are known by: the fewest steps applied of any worker. Those that are out of
  // data count, too: when they come back their empty steps are versions that a kept row has not.
  static int64_t ClockOf(const policies::RangeProgress& progress);
  // Is this clock larger than at the last refresh? Then it is the last one now.
  bool Grows(int64_t clock);

  // Worker `rank` keeps these rows from now on; it has read them for `step`.
  void OnRead(int rank, int64_t step, absl::Span<const uint64_t> keys);
  // The worker's update of `step` has been admitted. `changed`: the rows are not what they were.
  void OnUpdate(int rank, int64_t step, absl::Span<const uint64_t> keys, bool changed);
  // The rows are not what they were, by nobody's step.
  void OnChanged(absl::Span<const uint64_t> keys);

  // Is there anybody to tell: rows that are kept, or that are not any more?
  bool Keeps(int rank) const;
  // What is to be sent to a worker of which `own` steps are applied: rows that have changed, and rows
  // that are not kept any more. They count as sent.
  void Take(int rank, int64_t own, std::vector<uint64_t>* changed, std::vector<uint64_t>* dropped);
  // Are there so many rows to tell it of that are not kept any more that no refresh is to be awaited?
  bool MustForget(int rank) const {
    return 2 * workers_[static_cast<size_t>(rank)].dropped.size() > most_ && most_ > 0;
  }
  // Those rows alone. They count as told.
  void TakeDropped(int rank, std::vector<uint64_t>* dropped);
  // The number of the next frame for the worker, from 1.
  uint64_t NextNumber(int rank) { return ++workers_[static_cast<size_t>(rank)].frames; }

 private:
  struct Row {
    int64_t pushed = -1;  // by this worker
    int64_t used = 0;     // its last step with this row
    bool changed = false;
  };
  struct Worker {
    std::unordered_map<uint64_t, Row> rows;
    std::vector<uint64_t> changed;  // each once, all of them kept
    std::vector<uint64_t> dropped;
    uint64_t frames = 0;
  };
  static void Change(Worker* worker, uint64_t key, Row* row);
  void Shrink(Worker* worker);

  const size_t most_;
  uint32_t view_ = 0;
  int64_t clock_ = 0;
  std::vector<Worker> workers_;                       // by rank
  std::vector<std::pair<int64_t, uint64_t>> by_use_;  // scratch
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SUBSCRIPTIONS_H_
