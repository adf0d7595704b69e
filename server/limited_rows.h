// Admission and eviction in the store of one range (RowLimits has the rules). RangeStore asks for
// the row of each id that an update has; this class decides which ids get one, erases rows that
// count as absent, and finds rows to evict.
//
// Clock. The clock of a row is the version of the range at its last update. AGE is a rule for each
// row by itself: older rows count as absent at each read, update and copy, whether or not they are
// erased yet. So the same rows exist for any cut of the table into ranges, if versions are the
// same. A sweep erases absent rows and candidates, some at each step of the clock. The sweep frees
// memory and changes nothing that anybody reads. Clocks have the low 32 bits of the version. The
// sweep visits each entry often enough that no age is ambiguous.
//
// Victims. In a full range, LRU evicts one row for each row that it creates: the oldest row of a
// sample. The sample is a slice of the hashes with about 256 entries. LimitedRows remembers its
// oldest quarter and evicts these rows one by one, except rows that were updated since.
// Slices follow from the keys, not from the memory of the index, so a replay evicts the same rows.
// A row of the current version is never evicted, so no row of an update loses its number to another
// row of the update.
//
// Errors: as those of RangeStore (RESOURCE_EXHAUSTED), but with AT_BUDGET a key for which there is
// no memory is refused. An update that fails has been handled in part.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_LIMITED_ROWS_H_
#define TANDEM_SERVER_LIMITED_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/evicted_keys.h"
#include "server/row_copies.h"
#include "server/row_index.h"
#include "server/row_limits.h"
#include "server/row_slabs.h"

namespace tandem::server {

class RangeStore;

class LimitedRows {
 public:
  // The version at which the rows of an update were read, if it is not known.
  static constexpr int64_t kUnknownRead = std::numeric_limits<int64_t>::max();

  // `store` and `counts` (null: nothing is counted) outlive this object.
  LimitedRows(const RowLimits& limits, RangeStore* store, RowCounts* counts);

  // The owner may change the settings at any time.
  struct Settings {
    bool keeps_numbers = false, lists_evicted = false;  // Advance, TakeEvicted
    // With AT_BUDGET: the part (0 to 1) of the rows that SetRows loads, counted over all calls. A
    // range without rows loads one, if there is memory for it.
    double load_share = 1;
  };
  Settings& settings() { return settings_; }

  const RowLimits& limits() const { return limits_; }
  int64_t candidates() const { return candidates_; }
  StoreMemory Memory() const;

  // ---- the clock ----

  // Sets the version before rows are loaded.
  void StartAt(int64_t version) { version_ = pass_began_ = version; }
  // Moves the clock. Usually sweeps at most a few thousand entries. Sweeps more after updates with
  // many absent ids, and all entries if their ages would become ambiguous otherwise. When few rows
  // remain, the store numbers them anew (RangeStore), unless `keeps_numbers` is set.
  void Advance(int64_t version);
  int64_t version() const { return version_; }
  // The keys of rows that have been evicted since the last call, if `lists_evicted` is set; not of
  // those that a load has left out.
  std::vector<uint64_t> TakeEvicted() { return std::exchange(evicted_list_, {}); }
  // For AGE: the last version at which the row of `key` exists without another update; -1 without
  // a row.
  int64_t PresentUntil(uint64_t key) const;

  // ---- for the calls of RangeStore ----

  // True if a value of the index is a row, and the row does not count as absent.
  bool IsPresent(uint32_t value) const {
    return RowIndex::IsRow(value) &&
           (limits_.most_age == 0 || Age(value) <= static_cast<uint32_t>(limits_.most_age));
  }
  // Always inlined; row_slabs.h says why.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchClock(uint32_t row) const {
    if (limits_.evicts()) clocks_.PrefetchWeights(clocks_.Weights(row));
  }

  // Begins an update of these keys. `read_at`: the version at which each was read; empty: unknown.
  void BeginUpdate(absl::Span<const uint64_t> keys, absl::Span<const int64_t> read_at);
  // Key i of the update has this present row. Sets its clock, and counts the key if the update was
  // computed from a row that has been evicted since.
  void Touch(size_t i, uint32_t row);
  // Sets the row of key i, which has no present row yet; kNoRow if the key is refused. Evicts a row
  // if the new row would exceed the limits.
  absl::Status Admit(size_t i, uint32_t* row_number);
  // The numbers that the update has given to new rows.
  absl::Span<const uint32_t> created() const { return created_; }

  // RangeStore::Assign. ages[i]: versions since the last update of keys[i]; empty: 0. `loads`: the
  // rows are those of a checkpoint, and are not counted. If there are more rows than the limits
  // allow, roughly the oldest rows are left out.
  absl::Status SetRows(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                       absl::Span<const float> slots, absl::Span<const uint32_t> ages, bool loads);
  // Takes over a candidate of a checkpoint, unless the key has a row or there is no room.
  absl::Status SetCandidate(const Candidate& candidate);

  // These two copy a row or a candidate, unless it counts as absent at the mark. The copy of a row
  // has its age as the bits of a float behind the slots.
  void CopyRow(uint64_t key, uint32_t row, RowCopies* copies) const;
  void CopyCandidate(uint64_t key, uint32_t value, RowCopies* copies) const;

  // The rows get other numbers: old_numbers[n] becomes n. If this fails, nothing has changed.
  absl::Status Renumber(absl::Span<const uint32_t> old_numbers);

 private:
  struct Entry {  // of the index
    uint64_t key = 0;
    uint32_t value = 0;
    uint32_t clock = 0;
  };
  struct Victims {
    std::vector<Entry> entries;  // the oldest last
    uint64_t cursor = 0;         // hash of the next slice
    int64_t none_at = -1;        // a search at this version has found nothing
  };

  uint32_t ClockOf(uint32_t row) const {
    uint32_t clock;
    std::memcpy(&clock, clocks_.Weights(row), sizeof clock);
    return clock;
  }
  uint32_t Age(uint32_t row) const {
    return limits_.evicts() ? static_cast<uint32_t>(version_) - ClockOf(row) : 0;
  }
  void SetAge(uint32_t row, int64_t age);
  int64_t AgeOf(const Entry& entry) const;
  int64_t DeathOf(uint32_t row) const { return version_ - Age(row) + limits_.most_age + 1; }

  absl::Status RowToSet(uint64_t key, uint32_t age, uint32_t* row_number);
  absl::Status MayEnter(uint64_t key, uint64_t hash, uint32_t value, bool* enters);
  absl::Status Create(uint64_t key, uint64_t hash, uint32_t age, uint32_t* row_number);
  absl::Status PutCandidate(uint64_t key, uint64_t hash, uint32_t old, uint32_t value);
  void DropCandidate(uint64_t key, uint64_t hash, uint32_t value);
  void BeforeCandidate(uint64_t key, uint64_t hash, uint32_t value);
  void Evict(uint64_t key, uint64_t hash, uint32_t row, int64_t died);

  bool MakeRoomForRow(uint32_t age, bool in_index);
  bool MakeRoomForCandidate(uint32_t age);
  bool EvictOldest(bool rows, uint32_t age);
  size_t FindVictims(bool rows, Victims* victims);

  size_t Sweep(size_t most, int64_t ahead);
  void SweepEntry(const Entry& entry, int64_t ahead);

  const RowLimits limits_;
  const CandidateValues values_;
  RangeStore* const store_;
  RowIndex* const index_;  // of the store
  RowCounts* counts_;
  RowCounts uncounted_;  // the destination of counts that nobody wants
  Settings settings_;

  RowSlabs clocks_;  // by row number: the bits of a row's one float. Only if rows leave
  int64_t version_ = 0;
  int64_t candidates_ = 0;
  std::unique_ptr<EvictedKeys> evicted_;  // from the first eviction on
  std::vector<uint64_t> evicted_list_;
  Victims row_victims_, candidate_victims_;

  const int64_t longest_pass_;  // versions; no pass of the sweep may take more
  const int64_t pass_;          // versions that a pass takes, if it keeps to kMostSwept
  uint64_t cursor_ = 0;         // of the sweep, as in RowIndex::Scan
  int64_t pass_began_ = 0;      // version
  int64_t pass_entries_ = 0;    // of the index at that time
  double owed_ = 0;             // entries that the sweep has to visit
  size_t absent_ids_ = 0;       // of updates since the last sweep

  // The present update.
  absl::Span<const uint64_t> keys_;
  absl::Span<const int64_t> read_at_;
  bool may_be_fresh_ = false;  // some key was read before the last eviction
  std::vector<uint32_t> created_;
  std::vector<Entry> seen_;  // scratch

  double loadable_ = 0;  // rows of all loads so far, times their shares
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_LIMITED_ROWS_H_
