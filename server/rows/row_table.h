// The rows of one key range of one embedding table.
//
// Thread safety: none needed; a range belongs to one shard thread.
// Layout: an index of 64-byte buckets (row_index.h) and pages of rows (row_slabs.h), in memory of
// the shard's arena (page_arena.h). Both use huge pages if they are large and the system has such
// pages. Row numbers are stable until a row is erased. Pointers to rows are valid until the next
// call that may create or erase a row.
//
// Errors: calls that create rows return RESOURCE_EXHAUSTED if there is no memory for a row, or if
// the range has 2^31 rows. Some of their keys may be done by then. The table stays usable.
// With AT_BUDGET a key for which there is no memory is refused instead, and a row that would become
// hot keeps its type. Loading returns unstorable().
//
// Cost: a call on a batch of keys overlaps its cache misses (bucket, then row) over 32 keys or
// more. It allocates nothing unless it creates rows, or rows are not stored as floats.
//
// Invariants:
//   (1) a row is dim weights and slots_per_row optimizer slots. Callers see floats; row_format.h
//       says how they are stored;
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
#ifndef TANDEM_SERVER_ROWS_ROW_TABLE_H_
#define TANDEM_SERVER_ROWS_ROW_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/rows/row_copies.h"
#include "server/rows/row_store.h"

namespace tandem::server {

class RowTable : public RowStore {
 public:
  using RowStore::RowStore;

  // Copies the weights of keys[i] to out[i*dim, (i+1)*dim), caught up to Settings::steps_taken.
  // Requires: out.size() == keys.size() * dim. Repeated keys are allowed. Returns how many keys had
  // no row.
  size_t Pull(absl::Span<const uint64_t> keys, absl::Span<float> out) const;

  // The same rows as they travel: `words` words of 4 bytes each (optim::WireWords), in the type in
  // which they are stored. Requires: the optimizer does not catch up, and no row becomes hot.
  size_t PullStored(absl::Span<const uint64_t> keys, size_t words, absl::Span<float> out) const;

  // Applies gradients[i*dim, (i+1)*dim) * scale to the row of keys[i], created if absent, unless
  // the limits refuse the key. `step`: RowOptimizer::Apply. Requires: keys unique.
  absl::Status Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients, float scale,
                    const optim::OptimizerStep& step);

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
  // Not OK after an update (then a DivergedError) or a load of a weight that the row's type cannot
  // hold. The message is for users, and names the table and the key. RESOURCE_EXHAUSTED: there was
  // no memory for a row that was to become hot.
  const absl::Status& unstorable() const { return unstorable_; }
  // Applies gradients to rows by key and number, except keys with kNoRow. Requires: row numbers
  // valid and distinct.
  void ApplyToRows(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers,
                   absl::Span<const float> gradients, float scale,
                   const optim::OptimizerStep& step);

  // Sets the weights of each key, and the slots unless `slots` is empty (ASSIGN, files). Creates
  // absent rows. With limits each key is admitted, and has its last update at the present version.
  absl::Status Assign(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                      absl::Span<const float> slots);
  // Assigns rows of a checkpoint. With limits ages[i] is the number of versions since the last
  // update of keys[i] (empty: 0), and the rows are not counted. If there are more rows than the
  // limits allow, roughly the oldest rows are left out. `heads`: of the rows, if the file has them.
  absl::Status Load(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                    absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                    absl::Span<const optim::RowHead> heads = {});
  // The numbers of the rows that the last RowsForUpdate created.
  absl::Span<const uint32_t> created() const {
    return limited() ? limits_->created() : absl::Span<const uint32_t>();
  }
  // RowIndex::Scan over this range: appends about `most` keys and their row numbers.
  uint64_t Scan(uint64_t cursor, size_t most, std::vector<uint64_t>* keys,
                std::vector<uint32_t>* row_numbers) const;
  // Visits about `most` rows and copies those that `copies` lacks. The cursor is that of Scan.
  uint64_t CopyRows(uint64_t cursor, size_t most, RowCopies* copies) const;
  StoreMemory Memory() const;
  int64_t hot_rows() const { return hot_ == nullptr ? 0 : hot_->size(); }

 private:
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
  void FillAbsent(uint64_t key, float* out) const;
  template <bool kLimits>
  size_t PullAs(absl::Span<const uint64_t> keys, absl::Span<float> out) const;
  template <bool kLimits, typename Copy>
  size_t PullRows(absl::Span<const uint64_t> keys, bool with_slots, absl::Span<float> out,
                  Copy copy) const;
  template <bool kLimits>
  size_t PullStoredRows(absl::Span<const uint64_t> keys, size_t words, float* out) const;
  std::string Unstorable(uint64_t key, Table::Dtype type) const;
  // Stores the weights of a row after an update, or as a program or a file has them.
  template <typename Dim>
  void StoreUpdated(Dim dim, uint64_t key, const float* from, int64_t stamp, void* stored);
  void StoreGiven(uint64_t key, const float* from, const optim::RowHead* head, void* stored);
  bool MakeHot(void* stored);
  // The rows of a block as floats, if they are not stored as floats.
  struct Expanded {
    std::vector<float> weights, slots;
  };
  void ApplyBlock(absl::Span<const uint64_t> keys, absl::Span<float* const> weights,
                  absl::Span<float* const> slots, const float* gradients, float scale,
                  const optim::OptimizerStep& step, Expanded* expanded);

  // With limits.
  absl::Status Admit(size_t i, uint64_t key, uint32_t* row_number);
  absl::Status SetRows(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                       absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                       absl::Span<const optim::RowHead> heads, double max_rows);
  absl::Status SetUnlimited(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                            absl::Span<const float> slots, absl::Span<const optim::RowHead> heads);

  double loadable_ = 0;            // rows of all loads so far, times their shares
  std::vector<uint32_t> missing_;  // scratch of updates with limits
  absl::Status unstorable_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_TABLE_H_
