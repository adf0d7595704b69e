// One key range on its shard: rows, progress, and the updates its policy holds. Here pushes are
// admitted exactly once, folded, applied, and measured.
//
// Thread safety: none needed; a range belongs to one shard thread.
#ifndef TANDEM_SERVER_RANGE_H_
#define TANDEM_SERVER_RANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "policies/policy.h"
#include "server/held_updates.h"
#include "server/mean_squares.h"
#include "server/measure.h"
#include "server/range_file.h"
#include "server/range_store.h"
#include "server/read_log.h"
#include "server/read_memory.h"
#include "server/read_numbers.h"
#include "server/row_writes.h"
#include "server/subscriptions.h"
#include "server/update_order.h"
#include "server/update_record.h"

namespace tandem::server {

// What a shard counts of updates with rows, each once.
struct UpdateStats {
  uint64_t arrived = 0;
  uint64_t applied = 0, merged = 0, dropped = 0;
  Measure clock_gap, version_staleness, in_flight;
  Measure age;            // microseconds
  Measure row_staleness;  // one value for each row of an update; of recorded jobs

  void Merge(const UpdateStats& other);
};

// The same for one table, over all ranges the shard has owned.
struct TableStats {
  // Row staleness by how often the row had been updated; place: the bit width of that.
  std::vector<Measure> by_popularity;
  std::vector<UpdateStats> workers;  // by rank

  UpdateStats Total() const;  // over the workers
};

// What is the same for all ranges of a table on a shard; outlives them.
struct TableContext {
  const job::TablePlan* plan = nullptr;
  const optim::RowOptimizer* optimizer = nullptr;
  const policies::UpdatePolicy* policy = nullptr;
  int workers = 0;
  int reads = 1;  // of each worker that may wait for their updates: what rows as read are kept for
  bool lockstep = false;  // the job's: a worker without data goes on pushing nothing
  bool record = false;
  TableStats stats;
  std::vector<UpdateRecord>* records = nullptr;  // where records go, if `record`
  std::vector<OrderEntry>* order = nullptr;      // where the order of updates goes; null: nowhere
};

// Scratch memory for folds, shared by the ranges of a shard.
struct FoldScratch {
  std::vector<uint32_t> rows;        // row numbers of one contribution
  std::vector<uint32_t> union_rows;  // distinct row numbers of the fold
  std::vector<float> sums;           // [union_rows, dim]
  // Of an update that is recorded: its rows, and how often each had been updated when it was read.
  std::vector<uint32_t> rows_recorded, updates_as_read;
  // Of one contribution, if its policy changes gradients: what becomes of them, its rows now, and
  // where they are as they were read.
  std::vector<float> transformed, rows_now;
  std::vector<const float*> rows_read;
  std::vector<uint32_t> rows_squared;  // row numbers, where mean squares are kept
  std::vector<uint32_t> slot_row;      // open addressing: row number ...
  std::vector<uint32_t> slot_index;    // ... to its place in union_rows
};

// Bytes of RangeImage::held before the held updates: the samples of the last closed step, and how
// many bytes of held updates follow.
inline constexpr size_t kHeldHeadBytes = 2 * sizeof(uint64_t);
// The steps that a saved range holds back, and last its open batch if it has one; their values lie in
// memory from `source`.
absl::Status SavedQueue(const RangeImage& image, BufferSource& source, HeldQueue* delayed);

class Range {
 public:
  enum class Admission {
    kAdmitted,   // now held, applied or dropped
    kLate,       // likewise, but dropped by the policy: it came too late
    kDuplicate,  // was admitted before
    kEarly,      // an earlier step of this worker, or of others, is still to come
    kRefused,    // against the protocol
  };

  Range(uint32_t id, uint64_t begin, uint64_t end, TableContext* table, FoldScratch* scratch);

  // Admits steps [first, update.step] of update.rank; first < update.step only without rows.
  // `finished`: the worker's clock counts as infinite until its next push. `now` is what
  // update.admitted_at is stamped with.
  Admission Admit(absl::Time now, uint64_t incarnation, int64_t first, HeldUpdate update,
                  bool finished);

  // Sets rows; only before any step was admitted (false afterwards: a late duplicate).
  // values: [keys, dim] or [keys, dim + slots].
  bool AssignRows(absl::Span<const uint64_t> keys, absl::Span<const float> values, bool with_slots);

  // Applies what is held back: the queue of a fixed delay, in order, and a batch that nothing more
  // will come to (before the last evaluation).
  void FinishDelayed();

  // Takes over what lives here of a file that another run has saved: rows, the steps that a fixed
  // delay held back, and a batch that stood open, which is closed as it is. Once for each file, then
  // FinishLoad; before any step of this run.
  absl::Status LoadSaved(const RangeImage& image, BufferSource& source);
  // The queue goes on where it was: the first step that closes here applies its oldest. If this
  // job's delay is shorter, what is too much is applied now, in order.
  void FinishLoad();

  // Takes over what lives here of a file that this very run has saved: rows, progress and all that is
  // held, as they were. The workers of the run have new incarnations. Once for each file, before any
  // step. The files of a table may have cut it into other ranges.
  absl::Status ResumeSaved(const RangeImage& image, BufferSource& source);

  // Worker `rank` has been answered these rows for `step`. The rows are kept if the policy asks for
  // it; when it was, always.
  void RememberRead(absl::Time now, int rank, int64_t step, absl::Span<const uint64_t> keys,
                    absl::Span<const float> rows);

  // All of it as bytes, and back: what a range move carries.
  RangeImage Image() const;
  RangeImage Head() const;  // all of it but weights and slots
  absl::Status Restore(const RangeImage& image, BufferSource& source);

  uint32_t id() const { return id_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  const TableContext& table() const { return *table_; }
  const policies::RangeProgress& progress() const { return progress_; }
  RowWrites* writes() { return writes_.get(); }  // of a STORE table; else null
  // Of a table of which workers keep rows; else null.
  Subscriptions* subscriptions() { return subscriptions_.get(); }
  RangeStore& store() { return store_; }
  const RangeStore& store() const { return store_; }
  // Of updates held, and of rows as they were read.
  size_t held_bytes() const {
    return held_bytes_ + (read_memory_ == nullptr ? 0 : read_memory_->bytes());
  }
  uint64_t last_closed_samples() const { return last_closed_samples_; }

 private:
  absl::Status CheckProgress(const policies::RangeProgress& progress) const;
  absl::Status CheckHeld() const;
  absl::Status ResumeHeld(const RangeImage& image, BufferSource& source);
  void ResumeSteps(const HeldQueue& saved, BufferSource& source, bool first, HeldQueue* into);
  void Hold(HeldUpdate update);
  void ApplyAtOnce(const HeldUpdate& update);
  void Tick(int64_t steps);
  void CloseGroups(int64_t ticks);
  void ShowApplied();
  void ApplyFold(const HeldStep& step);
  void FoldInto(const HeldStep& step);
  void FoldUnion(const HeldStep& step);
  absl::Span<const float> Transformed(const HeldUpdate& update, float factor, float compensation);
  void Compensate(const HeldUpdate& update, float compensation);
  void ForgetRead(const HeldUpdate& update);
  void EncodeMemory(std::string* out) const;
  // `same_range`: of the range that encoded it; else what belongs to its keys alone is left out.
  absl::Status DecodeMemory(absl::string_view bytes, bool same_range);
  void Count(const HeldUpdate& update, uint64_t divided_by, UpdateFate fate);

  const uint32_t id_;
  const uint64_t begin_, end_;
  TableContext* const table_;
  FoldScratch* const scratch_;
  const policies::Properties properties_;  // of the policy
  RangeStore store_;
  policies::RangeProgress progress_;
  HeldQueue open_;                       // groups that ticks progress_.version, + 1, ... will close
  HeldQueue delayed_;                    // closed, not yet applied
  absl::optional<size_t> loaded_steps_;  // that files of a save held back, once one was loaded
  bool resumed_ = false;                 // a file of a save of this run was taken over
  size_t held_bytes_ = 0;
  ReadLog read_log_;
  int64_t now_us_ = 0;  // when the last update was admitted
  // Each is null unless the policy asks for it.
  std::unique_ptr<ReadMemory> read_memory_;
  std::unique_ptr<ReadNumbers> read_numbers_;
  std::unique_ptr<MeanSquares> mean_squares_;
  std::unique_ptr<RowWrites> writes_;
  std::unique_ptr<Subscriptions> subscriptions_;
  uint64_t last_closed_samples_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RANGE_H_
