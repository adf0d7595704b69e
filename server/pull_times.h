// The reads of a range: when each was answered and, for row staleness, how many updates each of its
// rows had by then. The staleness of an update is measured against the read that it comes from.
//
// The log keeps a read by worker and step until its update arrives, and then with that update until
// it is applied or dropped. So pulls and pushes carry nothing for it. The alternatives are worse.
// Counters in the answer and back in the push would cost four bytes a row on the wire each way. A
// row that remembers the versions of its last K updates could not measure a gap above K. The
// counters belong to this owner of the range: after a move or a restart they begin at 0, and
// earlier reads are unknown.
//
// The log keeps only the last reads of each worker, as PulledRowSnapshots does. The log reuses
// places with their memory, so a range that runs for ever allocates nothing.
//
// Cost: 4 bytes a worker, and 32 bytes a read whose update has not arrived yet or is held, at the
// moment with the most such reads. With row staleness also 4 bytes for each row of the range (8 if
// its rows may leave), and for such a read 72 bytes and 16 for each of its rows.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_PULL_TIMES_H_
#define TANDEM_SERVER_PULL_TIMES_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::server {

class PullTimes {
 public:
  static constexpr int32_t kUnknown = -1;

  // Keeps the latest `reads` reads of each worker. `by_row`: with their rows, for row staleness.
  PullTimes(int workers, int reads, bool by_row);

  bool by_row() const { return by_row_; }

  // The read of worker `rank` for `step` has been answered at `version`. `now_us`: microseconds of
  // the owner's monotonic clock. `rows`: the row numbers of the keys, from RowTable::Find. Both
  // are empty unless by_row().
  void OnRead(int rank, int64_t step, int64_t version, int64_t now_us,
              absl::Span<const uint64_t> keys, absl::Span<const uint32_t> rows);

  // Another process takes the place of worker `rank`, and reads its last steps again. Reads that
  // belong to an update stay.
  void Forget(int rank);

  // Returns the read that this update comes from, or kUnknown. The read then belongs to the update
  // until Drop. Forgets the worker's other reads for this step and for earlier ones.
  int32_t Take(const policies::Update& update);
  void Drop(int32_t read);

  // ReadAt and RowsOf are for a read that was taken. ReadAt: when it was answered.
  int64_t ReadAt(int32_t read) const { return places_[static_cast<size_t>(read)].at_us; }
  // The row numbers of the keys at the read, and for each row a count for UpdatesSince: 0 for an
  // absent row. The keys must be in the order of the read, which may have had other keys between
  // them. False if a key is not part of the read.
  bool RowsOf(int32_t read, absl::Span<const uint64_t> keys, std::vector<uint32_t>* rows,
              std::vector<uint32_t>* updates_as_read) const;

  // The number of updates of a row so far; 0 for an absent row.
  uint32_t Updates(uint32_t row) const { return CountOf(row) - FirstCountOf(row); }
  // The updates of a row since it was read, or since it was created if that came later.
  uint32_t UpdatesSince(uint32_t row, uint32_t as_read) const {
    return CountOf(row) - std::max(as_read, FirstCountOf(row));
  }
  // Counts one more update of each of these rows, except absent ones.
  void CountUpdate(absl::Span<const uint32_t> rows);
  // New rows have these numbers, which rows that are gone may have had before.
  void OnCreated(absl::Span<const uint32_t> rows);

 private:
  struct Read {
    int64_t step = 0;
    int64_t version = 0;
    int64_t at_us = 0;
    int32_t next = kUnknown;  // the next read of this worker, or the next free place
  };
  struct Rows {  // of a read
    std::vector<uint64_t> keys;
    std::vector<uint32_t> rows, updates;
  };
  uint32_t CountOf(uint32_t row) const { return row < updates_.size() ? updates_[row] : 0; }
  uint32_t FirstCountOf(uint32_t row) const { return row < first_.size() ? first_[row] : 0; }
  Read& At(int32_t place) { return places_[static_cast<size_t>(place)]; }
  int32_t NewPlace(int rank);
  static bool IsOlder(const Read& a, const Read& b);

  const bool by_row_;
  const int reads_;
  std::vector<int32_t> newest_;  // by rank: the first of its reads whose update has not come yet
  int32_t free_ = kUnknown;      // the first free place
  std::vector<Read> places_;
  std::vector<Rows> rows_;  // by place; empty unless by_row_
  // By row number: the updates of all rows that have had the number, and how many of them came
  // before the present row.
  std::vector<uint32_t> updates_, first_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_PULL_TIMES_H_
