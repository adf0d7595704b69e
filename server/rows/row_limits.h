// The rules by which rows of a range come and go, for tables with `admission` or `eviction`
// (row_limiter.h applies them), and the counts of what they did.
//
// All times are versions of the range (RangeProgress::version), never of a wall clock.
#ifndef TANDEM_SERVER_ROWS_ROW_LIMITS_H_
#define TANDEM_SERVER_ROWS_ROW_LIMITS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tandem::server {

struct RowLimits {
  // Admission. COUNT: an absent id gets a row with its update number `threshold`. Earlier ones make
  // it a candidate; a candidate whose last update is more than `within` versions ago counts as
  // absent (0: never). PROBABILITY: each update of an absent id admits it with this chance.
  int threshold = 1;
  int64_t within = 0;
  double probability = 1;
  bool zeros = false;  // ids without a row read as zeros, not as their initial values

  // Eviction, of at most one kind. AGE: a row whose last update is more than `max_age` versions
  // ago counts as absent. LRU: the range has at most `max_rows` rows. 0: no such rule.
  int64_t max_age = 0;
  int64_t max_rows = 0;
  bool at_budget = false;  // as LRU, when the store gets no more memory

  bool counts() const { return threshold > 1; }
  bool evicts() const { return max_age > 0 || max_rows > 0 || at_budget; }
  bool any() const { return counts() || probability < 1 || zeros || evicts(); }
};

// Counts of a table, over all ranges that the shard has owned. A resent read counts again. The rows
// and candidates at a moment are RowTable::size() and candidates().
struct RowCounts {
  // Ids of training reads, and those of them that had a row.
  uint64_t looked_up = 0, found = 0;
  // The rest is of tables with limits. Rows that updates (or ASSIGN) have created; rows that have
  // been evicted; ids of updates that got no row, each once a fold.
  uint64_t admitted = 0, evicted = 0, refused = 0;
  // Ids whose update was computed from a row that has been evicted since, and was applied to the
  // new row of the id; each once a fold.
  uint64_t to_fresh_rows = 0;
  // A sample of the evicted rows, and those of them that came back within
  // EvictedKeys::kBackWithin versions.
  uint64_t sampled = 0, came_back = 0;

  void Merge(const RowCounts& other) {
    looked_up += other.looked_up;
    found += other.found;
    admitted += other.admitted;
    evicted += other.evicted;
    refused += other.refused;
    to_fresh_rows += other.to_fresh_rows;
    sampled += other.sampled;
    came_back += other.came_back;
  }
};

// The resident memory of a store, in bytes.
struct StoreMemory {
  size_t arena = 0;  // index, rows and clocks: pages of the arena
  size_t other = 0;  // bookkeeping

  size_t bytes() const { return arena + other; }
};

// An id that has updates but no row yet. Files contain this struct as it is.
struct Candidate {
  uint64_t key = 0;
  uint32_t count = 0;  // its updates so far
  uint32_t age = 0;    // versions since the last of them

  friend bool operator==(const Candidate&, const Candidate&) = default;
};
static_assert(sizeof(Candidate) == 16);

// The value of a candidate in RowIndex: bit 31, 7 bits for its count, and 24 bits for the version
// of its last update, in units. A unit is one version, or more if `within` is long: then an age is
// up to one unit (a millionth of `within`) too large.
class CandidateValues {
 public:
  static constexpr uint32_t kMaxCount = 100;
  // Larger ages are ambiguous. RowLimiter visits each candidate often enough.
  static constexpr int64_t kMaxUnits = int64_t{1} << 22;

  explicit CandidateValues(int64_t within)
      : within_(within), unit_(std::max<int64_t>(1, (within + kUnits - 1) / kUnits)) {}

  int64_t unit() const { return unit_; }
  uint32_t Value(uint32_t count, int64_t version) const {
    return 1u << 31 | std::clamp(count, 1u, kMaxCount) << 24 |
           (static_cast<uint32_t>(Units(version)) & kClockMask);
  }
  static uint32_t Count(uint32_t value) { return value >> 24 & 0x7f; }
  // Versions since the last update, at `version`. Value(count, version - age) is the same value.
  int64_t Age(uint32_t value, int64_t version) const {
    const int64_t now = Units(version);
    const int64_t units = (static_cast<uint32_t>(now) - value) & kClockMask;
    return version - (now - units) * unit_;
  }
  bool IsExpired(int64_t age) const { return within_ > 0 && age > within_; }

 private:
  static constexpr int64_t kUnits = int64_t{1} << 20;  // of `within`
  static constexpr uint32_t kClockMask = (1u << 24) - 1;

  // Rounded down. A row of an earlier run may be older than version 0.
  int64_t Units(int64_t version) const {
    return version >= 0 ? version / unit_ : -((-version + unit_ - 1) / unit_);
  }

  const int64_t within_, unit_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_LIMITS_H_
