// The rows of a range that workers keep in their caches (ESSP; client/row_cache.h): which worker
// keeps which row, and which of them have changed since they were sent. When the smallest clock of
// the range has grown, the shard sends each worker the kept rows that have changed, in REFRESH
// frames (proto/frame.md).
//
// A row that the worker itself has pushed in its last step (kRefreshLag) waits for a later refresh.
// A row that the worker uses at every step would otherwise be read, changed and sent at every step,
// and never arrive in time. A read does not mark a row as sent, because its answer may be lost.
//
// A worker keeps at most `most` rows of a range, those that it has used last. The shard tells the
// worker which rows it has dropped, so that both sides agree. The news comes with the next refresh.
// No refresh comes while some worker is out of data; then the shard tells it when the dropped rows
// are half as many as may be kept.
//
// None of this moves with the range or is part of a checkpoint. The next owner begins without
// subscriptions, and workers see that from a larger `view`. Cost: about 80 bytes for each row and
// worker, and as much again for each row that some worker keeps (twice with eviction by AGE). For
// each row of an update, a look-up for each worker that keeps the row.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_SUBSCRIPTIONS_H_
#define TANDEM_SERVER_SUBSCRIPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace tandem::server {

class Subscriptions {
 public:
  // `most`: how many rows each worker keeps at most; 0: any number.
  Subscriptions(int workers, size_t most);

  // Starts without subscriptions: the range has arrived with this view, at this clock.
  void Begin(uint32_t view, int64_t clock) {
    view_ = view;
    clock_ = clock;
  }
  uint32_t view() const { return view_; }
  // The clock of kept rows is RangeProgress::MinApplied. Workers that are out of data count, too.
  // When they come back they push empty steps, which count as versions that a kept row lacks.
  //
  // True if `clock` is larger than at the last refresh. Then remembers it as that of the last
  // refresh.
  bool Grows(int64_t clock);
  // True if frames are due at this clock: it has grown, or some worker must be told of dropped
  // rows.
  bool OwesRefresh(int64_t clock) const { return clock > clock_ || !must_forget_.empty(); }

  // Another process takes the place of worker `rank`, and keeps no rows yet.
  void Forget(int rank);
  // Worker `rank` keeps these rows from now on; the worker has read them for `step`.
  void OnRead(int rank, int64_t step, absl::Span<const uint64_t> keys);
  // The worker's update of `step` has been admitted. `changed`: it has changed the rows.
  void OnUpdate(int rank, int64_t step, absl::Span<const uint64_t> keys, bool changed);
  // The rows have changed, but not by a worker's step.
  void OnChanged(absl::Span<const uint64_t> keys);

  // More than 0: the table has eviction by AGE, and rows also change by getting too old. Then call
  // OnVersion for each new version of the range. present_until(key) is RowTable::PresentUntil.
  void set_max_age(int64_t versions) { max_age_ = versions; }
  void OnVersion(int64_t version, absl::FunctionRef<int64_t(uint64_t key)> present_until);
  // Memory for OnVersion: a number that stays close to that of the rows that some worker keeps.
  size_t looks() const { return due_.size(); }

  // True if the worker keeps rows, or has not been told yet of rows that were dropped.
  bool Keeps(int rank) const;
  // Takes the keys to send to a worker of which `own` steps are applied: `changed` rows, and
  // `dropped` rows, which the worker must forget because they are no longer kept up to date for
  // it. Afterwards they count as sent.
  void Take(int rank, int64_t own, std::vector<uint64_t>* changed, std::vector<uint64_t>* dropped);
  // The workers, in ascending order, that must be told of dropped rows without waiting for a
  // refresh, because there are so many.
  absl::Span<const int> MustForget() const { return must_forget_; }
  // Takes the keys of the dropped rows only. Afterwards they count as sent.
  void TakeDropped(int rank, std::vector<uint64_t>* dropped);
  // The number of the next frame for the worker, from 1.
  uint64_t NextNumber(int rank) { return ++workers_[static_cast<size_t>(rank)].frames; }

 private:
  struct Row {
    int64_t pushed = -1;   // last step in which this worker pushed the row
    int64_t used = 0;      // last step in which this worker used the row
    bool changed = false;  // since it was sent
  };
  struct Worker {
    std::unordered_map<uint64_t, Row> rows;
    std::vector<uint64_t> changed;  // kept rows that have changed, each once
    std::vector<uint64_t> dropped;  // rows that the worker has not been told of yet
    uint64_t frames = 0;            // sent so far
  };
  struct Look {
    int64_t version = 0;
    bool was_absent = false;  // at the look before; false at the first one
  };
  static void Change(Worker* worker, uint64_t key, Row* row);
  void Shrink(int rank);
  void StopKeeping(int rank, uint64_t key);
  void StopLooking(uint64_t key);

  const size_t most_;
  // With AGE: by kept key, the next look whether its row is still there. The heap has the versions
  // of these looks and their keys, the earliest first, and also stale entries.
  int64_t max_age_ = 0;
  std::unordered_map<uint64_t, Look> looks_;
  std::vector<std::pair<int64_t, uint64_t>> due_;
  uint32_t view_ = 0;
  int64_t clock_ = 0;
  std::vector<Worker> workers_;                             // by rank
  std::unordered_map<uint64_t, std::vector<int>> keepers_;  // by key: the ranks that keep the row
  std::vector<int> must_forget_;                            // see MustForget
  std::vector<std::pair<int64_t, uint64_t>> by_use_;        // scratch
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SUBSCRIPTIONS_H_
