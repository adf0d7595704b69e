// RowLimiter decides by RowLimits which rows come and go. It admits ids, keeps the clocks of rows,
// and names the rows and candidates that leave. RowTable asks it and makes the changes.
//
// Clock. The clock of a row is the version of the range at its last update. AGE is a rule for each
// row by itself: older rows count as absent at each read, update and copy, whether or not they are
// erased yet. So the same rows exist for any cut of the table into ranges, if versions are the
// same. A sweep erases absent rows and candidates, some at each step of the clock. The sweep frees
// memory and changes nothing that anybody reads. Clocks have the low 32 bits of the version. The
// sweep visits each entry often enough that no age is ambiguous.
//
// Victims. In a full range, LRU evicts one row for each row that it creates: the oldest row of a
// sample. The sample is a slice of the hashes with about 256 entries. RowLimiter remembers its
// oldest quarter and names these rows one by one, except rows that were updated since. Slices
// follow from the keys, not from the memory of the index, so a replay evicts the same rows. A row
// of the current version is never named, so no row of an update loses its number to another row of
// the update.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_ROW_LIMITER_H_
#define TANDEM_SERVER_ROWS_ROW_LIMITER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/rows/evicted_keys.h"
#include "server/rows/row_copies.h"
#include "server/rows/row_index.h"
#include "server/rows/row_limits.h"
#include "server/rows/row_slabs.h"

namespace tandem::server {

class RowLimiter {
 public:
  // The version at which the rows of an update were read, if it is not known.
  static constexpr int64_t kUnknownRead = std::numeric_limits<int64_t>::max();
  static constexpr uint32_t kNoRow = RowIndex::kNoRow;

  struct Entry {  // of the index
    uint64_t key = 0;
    uint32_t value = 0;
    uint32_t clock = 0;
  };

  // `seed`: of the table. `counts` (null: nothing is counted) outlives this object.
  RowLimiter(const RowLimits& limits, uint64_t seed, PageArena* arena, RowCounts* counts);

  static bool IsCandidate(uint32_t value) { return !RowIndex::IsRow(value) && value != kNoRow; }
  // True if a value of the index is a row, and the row does not count as absent.
  bool IsPresent(uint32_t value) const {
    return RowIndex::IsRow(value) && !IsTooOld(limits_.max_age == 0 ? 0 : Age(value, version_));
  }
  bool IsTooOld(uint32_t age) const { return limits_.max_age > 0 && age > limits_.max_age; }

  RowCounts& counts() { return *counts_; }
  StoreMemory Memory() const;

  // ---- the clocks ----

  void StartAt(int64_t version) { version_ = pass_began_ = version; }
  int64_t version() const { return version_; }
  // Moves the clock and sweeps. Calls change(entry, value) before an entry changes. `value`: its
  // next value in the index; kNoRow if the entry leaves; the same value if the clock of a row
  // changes. Returns true if a pass over all entries ended.
  using Change = absl::FunctionRef<void(const Entry& entry, uint32_t value)>;
  bool Advance(const RowIndex& index, int64_t version, Change change);

  // Always inlined; row_slabs.h says why.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchClock(uint32_t row) const {
    if (limits_.evicts()) clocks_.PrefetchWeights(clocks_.Weights(row));
  }
  // Makes room for the clocks of rows [0, count).
  absl::Status Reserve(size_t count) {
    return limits_.evicts() ? clocks_.Reserve(count) : absl::OkStatus();
  }
  // Versions since the last update of a row, at `version`.
  uint32_t Age(uint32_t row, int64_t version) const {
    return limits_.evicts() ? static_cast<uint32_t>(version) - ClockOf(row) : 0;
  }
  // Requires: room for the clock of the row.
  void SetAge(uint32_t row, int64_t age) {
    if (!limits_.evicts()) return;
    const auto clock = static_cast<uint32_t>(version_ - age);
    std::memcpy(clocks_.Weights(row), &clock, sizeof clock);
  }
  // The first version at which reads no longer see a row without further updates, or a row that
  // leaves now.
  int64_t DeathOf(uint32_t row) const {
    return version_ + 1 + (limits_.max_age == 0 ? 0 : limits_.max_age - Age(row, version_));
  }
  // The rows get other numbers: old_numbers[n] becomes n. If this fails, nothing has changed.
  absl::Status Renumber(absl::Span<const uint32_t> old_numbers);

  // ---- updates and loads ----

  // Begins an update. read_at[i]: the version at which key i was read; empty: unknown.
  void BeginUpdate(absl::Span<const int64_t> read_at);
  // Counts key i of the update if its row was evicted after it was read. Before the first row of
  // the update is created, no key counts unless may_be_fresh().
  bool may_be_fresh() const { return may_be_fresh_; }
  void CountIfFresh(size_t i, uint64_t hash);
  // True if an update of a key without a row creates the row. `value`: the key's value, a candidate
  // or kNoRow. False: *candidate is the next value of the key, or kNoRow if it gets none.
  bool Admits(uint64_t key, uint32_t value, uint32_t* candidate);
  // Key i of the update got a row.
  void OnCreated(size_t i, uint64_t hash, uint32_t row);
  // The numbers of the rows that the update created.
  absl::Span<const uint32_t> created() const { return created_; }

  // The value of a candidate that a checkpoint has; nullopt if it counts as absent.
  std::optional<uint32_t> ValueOf(const Candidate& candidate) const;
  // Larger ages of rows become this age.
  static constexpr uint32_t kMaxRowAge = 1u << 30;
  void CopyCandidate(uint64_t key, uint32_t value, RowCopies* copies) const;
  // Nothing counts between these two: this run did not evict the rows that a load leaves out.
  void BeginLoad() { counts_ = &uncounted_; }
  void EndLoad() {
    counts_ = wanted_counts_;
    evicted_ = nullptr;
  }

  // ---- rows and candidates that leave ----

  // A row, or a candidate, that is older than `age` and leaves now; nullopt if none is found.
  std::optional<Entry> Oldest(const RowIndex& index, bool rows, uint32_t age);
  // A row left. `rows`: the number of remaining rows.
  void OnEvicted(uint64_t hash, uint32_t row, int64_t rows);

 private:
  struct Victims {
    std::vector<Entry> entries;  // the oldest last
    uint64_t cursor = 0;         // hash of the next slice
    int64_t none_at = -1;        // a search at this version found nothing
  };

  uint32_t ClockOf(uint32_t row) const {
    uint32_t clock;
    std::memcpy(&clock, clocks_.Weights(row), sizeof clock);
    return clock;
  }
  int64_t AgeOf(const Entry& entry) const;
  size_t FindVictims(const RowIndex& index, bool rows, Victims* victims);
  size_t Sweep(const RowIndex& index, size_t most, int64_t ahead, Change change);
  void SweepEntry(const Entry& entry, int64_t ahead, Change change);

  const RowLimits limits_;
  const CandidateValues values_;
  const uint64_t seed_;
  RowCounts uncounted_;  // the destination of counts that nobody wants
  RowCounts* const wanted_counts_;
  RowCounts* counts_;  // &uncounted_ or wanted_counts_

  RowSlabs clocks_;  // by row number. Only if rows leave
  int64_t version_ = 0;
  std::unique_ptr<EvictedKeys> evicted_;  // from the first eviction on
  Victims row_victims_, candidate_victims_;

  const int64_t longest_pass_;  // versions; no pass of the sweep may take more
  const int64_t pass_;          // versions that a pass takes, if it keeps to kMaxSwept
  uint64_t cursor_ = 0;         // of the sweep, as in RowIndex::Scan
  int64_t pass_began_ = 0;      // version
  int64_t pass_entries_ = 0;    // of the index at that time
  double owed_ = 0;             // entries that the sweep has to visit
  size_t absent_ids_ = 0;       // of updates since the last sweep

  absl::Span<const int64_t> read_at_;  // of the present update
  bool may_be_fresh_ = false;          // some key was read before the last eviction
  std::vector<uint32_t> created_;
  std::vector<Entry> seen_;  // scratch
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_LIMITER_H_
