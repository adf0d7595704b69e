// The rows of one key range of one embedding table.
//
// Thread safety: none needed; a range belongs to one shard thread.
// Layout: an index of 64-byte buckets (row_index.h) and pages of rows (row_slabs.h), in memory of
// the shard's arena (page_arena.h). Both use huge pages if they are large and the system has such
// pages. Row numbers are stable until a row is erased. Pointers to rows are valid until the next
// call that may create or erase a row.
//
// The table makes every change. If the table has limits, RowLimiter decides: it admits keys and
// names the rows and candidates that leave. It reads the index and changes nothing here.
//
// Errors: calls that create rows return RESOURCE_EXHAUSTED if there is no memory for a row, or if
// the range has 2^31 rows. Some of their keys may have been handled then. The table stays usable.
// With AT_BUDGET a key for which there is no memory is refused instead.
//
// Cost: a call on a batch of keys overlaps its cache misses (bucket, then row) over 32 keys or
// more. It allocates nothing unless it creates rows.
//
// Invariants:
//   (1) a row is dim floats of weights, and slots_per_row floats of optimizer slots;
//   (2) a row's initial values depend only on (seed, key);
//   (3) reads create no row. A row exists from its first update, or from the call that sets it.
//       Until then its key is absent and reads as the initial values. Limits change this
//       (row_limiter.h): an update may be refused, and rows may leave again;
//   (4) rows are numbered 0, 1, 2, ... in order of creation; a new row first takes the number of an
//       erased row, if there is one. So a number may mean another row after the next update if the
//       store has limits, or after the next Add. When few rows remain after erasing, they are
//       numbered anew, and the memory of the others is given back.
// Handled elsewhere: which shard owns a key (views), when a read may be answered (policies/), bytes
// on the wire (proto/frame.md), files (range_file.h).
#ifndef TANDEM_SERVER_ROW_TABLE_H_
#define TANDEM_SERVER_ROW_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "optim/optimizer.h"
#include "proto/job.pb.h"
#include "server/page_arena.h"
#include "server/row_copies.h"
#include "server/row_index.h"
#include "server/row_limiter.h"
#include "server/row_limits.h"
#include "server/row_slabs.h"

namespace tandem::server {

class RowTable {
 public:
  struct Options {
    int dim = 0;
    uint64_t salt = 0;  // of Position()
    uint64_t seed = 0;  // for initial values
    Initializer initializer;
    const optim::RowOptimizer* optimizer = nullptr;  // outlives the store
    int64_t expected_rows = 0;   // a hint, capped at 65,536; the store grows beyond it
    std::string table;           // name; unless empty, files of other tables are refused
    PageArena* arena = nullptr;  // outlives the store; null: the store has an arena of its own
    RowLimits limits;            // by which rows come and go
    // Whether the store may take this many more bytes; null: always. Only for RowLimits::at_budget.
    std::function<bool(size_t bytes)> may_grow;
    RowCounts* counts = nullptr;  // of what the limits do; outlives the store. Null: not counted
  };

  // The owner may change the settings at any time. They are for tables with limits.
  struct Settings {
    bool keeps_numbers = false, lists_evicted = false;  // Advance, TakeEvicted
    // With AT_BUDGET: the part (0 to 1) of the rows that Load takes, counted over all calls. A
    // range without rows takes one, if there is memory for it.
    double load_share = 1;
  };

  explicit RowTable(const Options& options);
  RowTable(const RowTable&) = delete;
  RowTable& operator=(const RowTable&) = delete;

  // Copies the weights of keys[i] to out[i*dim, (i+1)*dim). Requires: out.size() == keys.size() *
  // dim. Repeated keys are allowed. Returns how many keys had no row.
  size_t Pull(absl::Span<const uint64_t> keys, absl::Span<float> out) const;

  // Applies gradients[i*dim, (i+1)*dim) * scale to the row of keys[i], created if absent, unless
  // the limits refuse the key. `step`: RowOptimizer::Apply. Requires: keys unique.
  absl::Status Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients, float scale,
                    int64_t step);

  // Row numbers of the keys; RowIndex::kNoRow for absent keys.
  void Find(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers) const;
  // Row numbers of the keys; creates absent rows. Requires: no limits.
  absl::Status FindOrCreate(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers);
  // Row numbers for one update of these keys, which is one step of the optimizer: creates absent
  // rows as the limits allow, and RowIndex::kNoRow for keys that they refuse. Call it once for each
  // update. `read_at`: the version at which each key was read; empty: not known. Requires: keys
  // unique.
  absl::Status RowsForUpdate(absl::Span<const uint64_t> keys, absl::Span<const int64_t> read_at,
                             absl::Span<uint32_t> row_numbers);
  // Applies gradients to rows by key and number, except keys with kNoRow. Requires: row numbers
  // valid and distinct.
  void ApplyToRows(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers,
                   absl::Span<const float> gradients, float scale, int64_t step);

  // Sets the weights of each key, and the slots unless `slots` is empty (ASSIGN, files). Creates
  // absent rows. With limits each key is admitted, and has its last update at the present version.
  absl::Status Assign(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                      absl::Span<const float> slots);
  // Assigns rows of a checkpoint. With limits ages[i] is the number of versions since the last
  // update of keys[i] (empty: 0), and the rows are not counted. If there are more rows than the
  // limits allow, roughly the oldest rows are left out.
  absl::Status Load(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                    absl::Span<const float> slots, absl::Span<const uint32_t> ages);

  // ---- limits; without limits these calls do nothing ----

  bool limited() const { return limits_ != nullptr; }
  int64_t candidates() const { return candidates_; }
  Settings& settings() { return settings_; }
  // Sets the version before rows are loaded.
  void StartAt(int64_t version) {
    if (limited()) limits_->StartAt(version);
  }
  // Moves the clock. Usually sweeps at most a few thousand entries. Sweeps more after updates with
  // many absent ids, and all entries if their ages would become ambiguous otherwise. When few rows
  // remain, numbers them anew, unless Settings::keeps_numbers is set.
  void Advance(int64_t version);
  // The keys of rows that have been evicted since the last call, if `lists_evicted` is set; not of
  // those that a load has left out.
  std::vector<uint64_t> TakeEvicted() { return std::exchange(evicted_list_, {}); }
  // For AGE: the last version at which the row of `key` exists without another update; -1 without
  // a row. Requires: limits.
  int64_t PresentUntil(uint64_t key) const;
  // The numbers that the last RowsForUpdate has given to new rows.
  absl::Span<const uint32_t> created() const {
    return limited() ? limits_->created() : absl::Span<const uint32_t>();
  }
  // Takes over a candidate of a checkpoint, unless the key has a row or there is no room.
  absl::Status SetCandidate(const Candidate& candidate);

  // ---- rows that programs write themselves (KEY_VALUE tables) ----

  // Reads, and sets, the weights and slots of a row: dim + slots_per_row floats.
  void CopyRow(uint32_t row_number, float* out) const;
  void SetRow(uint64_t key, uint32_t row_number, const float* values);
  // Creates the row of an absent key.
  absl::Status Add(uint64_t key, uint32_t* row_number);
  // False if the key was absent. Requires: no limits.
  bool Erase(uint64_t key);
  // RowIndex::Scan over this range: appends about `most` keys and their row numbers.
  uint64_t Scan(uint64_t cursor, size_t most, std::vector<uint64_t>* keys,
                std::vector<uint32_t>* row_numbers) const;

  // ---- copies of all rows at one moment (row_copies.h) ----

  RowCopies NewCopies(std::shared_ptr<CopyBlocks> blocks, size_t extra = 0,
                      RowCopies::CopyExtra copy_extra = nullptr) const;
  // From now on the store copies each row that `copies` lacks before the row changes. Null ends
  // this. Requires: no row has changed since NewCopies made `copies`, which must outlive its use.
  void set_copies(RowCopies* copies) { copies_ = copies; }
  // Visits about `most` rows and copies those that `copies` lacks. The cursor is that of Scan.
  uint64_t CopyRows(uint64_t cursor, size_t most, RowCopies* copies) const;
  // Call it before data of these rows outside the store changes (RowCopies::CopyExtra).
  void BeforeChange(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers) {
    if (copies_ != nullptr) SetAside(keys, row_numbers);
  }

  const Options& options() const { return options_; }
  int dim() const { return options_.dim; }
  int slots_per_row() const { return slots_per_row_; }
  // Rows, including absent ones that are not erased yet.
  int64_t size() const { return index_.size() - candidates_; }
  StoreMemory Memory() const;
  absl::Span<const float> Weights(uint32_t row_number) const {
    return {WeightsOf(row_number), static_cast<size_t>(options_.dim)};
  }
  absl::Span<const float> Slots(uint32_t row_number) const {
    return {SlotsOf(row_number), static_cast<size_t>(slots_per_row_)};
  }

 private:
  static constexpr uint32_t kNoRow = RowIndex::kNoRow;

  float* WeightsOf(uint32_t row) const { return static_cast<float*>(rows_.Weights(row)); }
  float* SlotsOf(uint32_t row) const { return static_cast<float*>(rows_.Slots(row)); }
  RowSlabs NewSlabs() const;
  // Floats of a row in a copy: with limits, and its age.
  size_t copied_floats() const {
    return static_cast<size_t>(options_.dim + slots_per_row_) + (limited() ? 1 : 0);
  }
  bool MayGrow(size_t bytes) const {
    return options_.may_grow == nullptr || options_.may_grow(bytes);
  }
  size_t numbers() const { return static_cast<size_t>(size()) + free_.size(); }
  // Two steps create a row. NextNumber makes room for it, and changes nothing else. The caller then
  // puts the number into the index, and StartRow sets the initial values.
  absl::Status NextNumber(uint32_t* row_number);
  void StartRow(uint64_t key, uint32_t row_number);
  void EraseRow(uint64_t key, uint64_t hash, uint32_t row);
  void ShrinkIfSparse();
  void SetAside(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers);
  void CopyMissing(uint64_t key, uint32_t row_number, RowCopies* copies) const;
  // The pipeline under all batch calls; row_table.cc explains it.
  struct Block;
  template <bool kLimits>
  void FindBlock(Block& block, bool with_slots) const;
  struct Nothing {
    void operator()(uint64_t, uint32_t*) const {}
  };
  template <bool kLimits, typename Use, typename Resolve = Nothing>
  void ForEachBlock(absl::Span<const uint64_t> keys, bool with_slots, Use use,
                    Resolve resolve = {}) const;
  template <typename Use>
  absl::Status ForEachBlockCreating(absl::Span<const uint64_t> keys, Use use);
  template <bool kLimits>
  size_t PullRows(absl::Span<const uint64_t> keys, absl::Span<float> out) const;
  void ApplyBlock(absl::Span<float* const> weights, absl::Span<float* const> slots,
                  const float* gradients, float scale, int64_t step);

  // With limits.
  absl::Status Admit(size_t i, uint64_t key, uint32_t* row_number);
  absl::Status SetRows(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                       absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                       double most_rows);
  uint32_t ValueOf(uint64_t key, uint64_t hash);
  absl::Status Create(uint64_t key, uint64_t hash, uint32_t value, uint32_t age,
                      uint32_t* row_number);
  absl::Status PutCandidate(uint64_t key, uint64_t hash, uint32_t old, uint32_t value,
                            uint32_t age);
  void BeforeCandidate(uint64_t key, uint64_t hash, uint32_t value);
  void Remove(const RowLimiter::Entry& entry);
  bool EvictOldest(bool rows, uint32_t age);

  const Options options_;
  const int slots_per_row_;
  const std::unique_ptr<PageArena> own_arena_;  // null: the arena of the options
  PageArena* const arena_;
  RowIndex index_;
  RowSlabs rows_;
  std::vector<uint32_t> free_;          // numbers of rows that have been erased
  RowCopies* copies_ = nullptr;         // in progress; null: none
  int64_t candidates_ = 0;              // in the index
  std::unique_ptr<RowLimiter> limits_;  // null: none
  Settings settings_;
  double loadable_ = 0;  // rows of all loads so far, times their shares
  std::vector<uint64_t> evicted_list_;
  std::vector<uint32_t> missing_;  // scratch of updates with limits
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROW_TABLE_H_
