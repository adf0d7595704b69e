// RowStore has the rows of a range one by one, under all calls of RowTable. It owns the index, the
// rows, the numbers of erased rows and the limits, and makes every change of them. If the range has
// limits, RowLimiter admits keys and names the rows and candidates that leave.
//
// Row numbers are stable until a row is erased. Pointers to rows are valid until the next call that
// may create or erase a row.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_ROW_STORE_H_
#define TANDEM_SERVER_ROWS_ROW_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "optim/optimizer.h"
#include "optim/row_format.h"
#include "proto/job.pb.h"
#include "server/rows/hot_rows.h"
#include "server/rows/page_arena.h"
#include "server/rows/row_copies.h"
#include "server/rows/row_index.h"
#include "server/rows/row_limiter.h"
#include "server/rows/row_limits.h"
#include "server/rows/row_slabs.h"

namespace tandem::server {

// True if the position is in [begin, end). End 0 means 2^64.
inline bool InRange(uint64_t position, uint64_t begin, uint64_t end) {
  return position >= begin && (end == 0 || position < end);
}

class RowStore {
 public:
  struct Options {
    int dim = 0;
    uint64_t salt = 0;  // of Position()
    uint64_t seed = 0;  // for initial values
    Initializer initializer;
    const optim::RowOptimizer* optimizer = nullptr;  // outlives the store
    optim::RowTypes types;
    int64_t expected_rows = 0;   // a hint, capped at 65,536; the store grows beyond it
    std::string table;           // name; unless empty, files of other tables are refused
    PageArena* arena = nullptr;  // outlives the store; null: the store has an arena of its own
    RowLimits limits;            // by which rows come and go
    // Whether the store may take this many more bytes; null: always. Only for RowLimits::at_budget.
    std::function<bool(size_t bytes)> may_grow;
    RowCounts* counts = nullptr;  // of what the limits do; outlives the store. Null: not counted
  };

  // The owner may change the settings at any time. All but the first are for tables with limits.
  struct Settings {
    // Steps that the optimizer has taken, to which Pull catches rows up (RowOptimizer::CatchUp).
    int64_t steps_taken = 0;
    bool keeps_numbers = false, lists_evicted = false;  // Advance, TakeEvicted
    // With AT_BUDGET: the part (0 to 1) of the rows that Load takes, counted over all calls. A
    // range without rows takes one row, if memory allows.
    double load_share = 1;
  };

  explicit RowStore(const Options& options);
  RowStore(const RowStore&) = delete;
  RowStore& operator=(const RowStore&) = delete;

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
  // The keys of rows evicted since the last call, if `lists_evicted` is set. Rows that a load left
  // out are not among them.
  std::vector<uint64_t> TakeEvicted() { return std::exchange(evicted_list_, {}); }
  // For AGE: the last version at which the row of `key` exists without another update; -1 without
  // a row. Requires: limits.
  int64_t PresentUntil(uint64_t key) const;
  // Takes over a candidate of a checkpoint, unless the key has a row or there is no room.
  absl::Status SetCandidate(const Candidate& candidate);

  // ---- rows that programs write themselves (KEY_VALUE tables) ----

  // Reads, and sets, the weights and slots of a row: dim + slots_per_row floats. SetRow is for
  // KEY_VALUE tables alone.
  void CopyRow(uint32_t row_number, float* out) const;
  void SetRow(uint64_t key, uint32_t row_number, const float* values);
  // Creates the row of an absent key.
  absl::Status Add(uint64_t key, uint32_t* row_number);
  // False if the key was absent. Requires: no limits.
  bool Erase(uint64_t key);

  // ---- copies of all rows at one moment (row_copies.h) ----

  RowCopies NewCopies(std::shared_ptr<CopyBlocks> blocks, size_t extra = 0,
                      RowCopies::CopyExtra copy_extra = nullptr) const;
  // From now on the store copies each row that `copies` lacks before the row changes. Null ends
  // this. Requires: no row changed since NewCopies made `copies`, which must outlive its use.
  void set_copies(RowCopies* copies) { copies_ = copies; }
  // Call it before data of these rows outside the store changes (RowCopies::CopyExtra).
  void BeforeChange(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers) {
    if (copies_ != nullptr) SetAside(keys, row_numbers);
  }

  const Options& options() const { return options_; }
  int dim() const { return options_.dim; }
  int slots_per_row() const { return slots_per_row_; }
  // Rows, including absent ones that are not erased yet.
  int64_t size() const { return index_.size() - candidates_; }
  // Requires: weights, and slots, are stored as F32.
  absl::Span<const float> Weights(uint32_t row_number) const {
    TANDEM_CHECK(row_number < static_cast<size_t>(size()) + free_.size() && format_.f32_weights());
    return {WeightsOf(row_number), static_cast<size_t>(options_.dim)};
  }
  absl::Span<const float> Slots(uint32_t row_number) const {
    TANDEM_CHECK(row_number < static_cast<size_t>(size()) + free_.size() && format_.f32_slots());
    return {SlotsOf(row_number), static_cast<size_t>(slots_per_row_)};
  }

 protected:
  static constexpr uint32_t kNoRow = RowIndex::kNoRow;

  // Where a row is stored: as floats, unless the format of the table says otherwise. The weights of
  // a hot row are in hot_.
  float* WeightsOf(uint32_t row) const { return static_cast<float*>(rows_.Weights(row)); }
  float* SlotsOf(uint32_t row) const { return static_cast<float*>(rows_.Slots(row)); }
  void CopyMissing(uint64_t key, uint32_t row_number, RowCopies* copies) const;
  // With limits.
  uint32_t ValueOf(uint64_t key, uint64_t hash);
  absl::Status Create(uint64_t key, uint64_t hash, uint32_t value, uint32_t age,
                      uint32_t* row_number);
  absl::Status PutCandidate(uint64_t key, uint64_t hash, uint32_t old, uint32_t value,
                            uint32_t age);
  bool EvictOldest(bool rows, uint32_t age);

  const Options options_;
  const int slots_per_row_;
  const optim::RowFormat format_;
  const std::unique_ptr<PageArena> own_arena_;  // null: the arena of the options
  PageArena* const arena_;
  RowIndex index_;
  RowSlabs rows_;
  std::unique_ptr<HotRows> hot_;        // null: no row becomes hot
  std::vector<uint32_t> free_;          // numbers of erased rows
  RowCopies* copies_ = nullptr;         // in progress; null: none
  int64_t candidates_ = 0;              // in the index
  std::unique_ptr<RowLimiter> limits_;  // null: none
  Settings settings_;
  std::vector<uint64_t> evicted_list_;

 private:
  bool MayGrow(size_t bytes) const {
    return options_.may_grow == nullptr || options_.may_grow(bytes);
  }
  // Floats of a row in a copy: its weights, its slots, its head if it has one, and its age if there
  // are limits.
  size_t copied_floats() const {
    return static_cast<size_t>(options_.dim + slots_per_row_) +
           (options_.types.has_heads() ? 1 : 0) + (limited() ? 1 : 0);
  }
  // Two steps create a row. NextNumber makes room for it, and changes nothing else. The caller then
  // puts the number into the index, and StartRow sets the initial values.
  absl::Status NextNumber(uint32_t* row_number);
  void StartRow(uint64_t key, uint32_t row_number);
  void EraseRow(uint64_t key, uint64_t hash, uint32_t row);
  void ShrinkIfSparse();
  void SetAside(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers);
  void BeforeCandidate(uint64_t key, uint64_t hash, uint32_t value);
  void Remove(const RowLimiter::Entry& entry);
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_STORE_H_
