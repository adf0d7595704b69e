// One key range on its shard: its rows, and the order of its updates
// (policies/order/update_order.h), whose sink it is. A range admits each push exactly once, applies
// or folds it, and measures it.
//
// Thread safety: none needed; a range belongs to one shard thread.
#ifndef TANDEM_SERVER_RANGE_H_
#define TANDEM_SERVER_RANGE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "job/job.h"
#include "optim/schedule.h"
#include "policies/order/update_order.h"
#include "policies/policy.h"
#include "server/checkpoint/range_copy.h"
#include "server/checkpoint/range_file.h"
#include "server/pull_times.h"
#include "server/range_totals.h"
#include "server/record/gradient_meter.h"
#include "server/record/measure.h"
#include "server/record/order_file.h"
#include "server/record/update_record.h"
#include "server/rows/held_updates.h"
#include "server/rows/mean_squares.h"
#include "server/rows/memory_budget.h"
#include "server/rows/pulled_row_snapshots.h"
#include "server/rows/row_table.h"
#include "server/rows/row_writes.h"
#include "server/subscriptions.h"
#include "server/worker_sums.h"

namespace tandem::server {

// Counts and staleness of the updates that had rows. A resent update counts once. An update of
// several ranges counts in each of them, and so do its samples.
struct UpdateStats {
  uint64_t arrived = 0;
  uint64_t applied = 0, merged = 0, dropped = 0;
  SampleCounts samples;  // but for frozen tables
  Measure clock_gap, version_staleness;
  Measure age;            // microseconds from the read to the application
  Measure row_staleness;  // one value for each row of an update; only in jobs that record staleness

  void Merge(const UpdateStats& other);
};

// The same counts for one table, over all ranges that the shard has owned.
struct TableStats {
  UpdateStats total;  // over the workers
  Measure in_flight;
  // Row staleness by the number of updates that the row had before. The index is the bit width of
  // that number.
  std::vector<Sum> by_popularity;
  GradientSums gradients;
  std::vector<UpdateStats> workers;  // by rank; empty in jobs with many pairs (over_tables)
  RowCounts rows;                    // ids that were looked up, rows that came and went
};

// The data that all ranges of a table on a shard share. The context outlives its ranges, which copy
// policy, workers, reads and lockstep when they are made.
struct TableContext {
  const job::TablePlan* plan = nullptr;
  const optim::RowOptimizer* optimizer = nullptr;
  std::unique_ptr<const optim::Schedule> schedule;  // of the learning rate; null: constant
  const policies::UpdatePolicy* policy = nullptr;
  int workers = 0;
  int reads = 1;          // reads of each worker whose updates may still be on their way
  bool lockstep = false;  // of the job; if true, a worker without data keeps pushing empty steps
  bool record = false;
  double gradient_share = 0;  // of the rows whose gradients are measured; 0: none
  // Whether the rows of the table may take so many more bytes; null: always. For AT_BUDGET.
  std::function<bool(size_t bytes)> may_grow;
  TableStats stats;
  // The statistics of each worker over all tables of the shard, by rank, in jobs with too many
  // pairs of a worker and a table (ResolvedJob::CountsPairs). Null in other jobs.
  std::vector<UpdateStats>* over_tables = nullptr;
  PageArena* arena = nullptr;  // for the rows; null: each range has an arena of its own
  // Not OK: a range could not create a row (NoMemoryFor), and has lost a part of an update, or a
  // row could not be stored (RowTable::unstorable). The shard cannot continue.
  absl::Status failure;
  std::vector<UpdateRecord>* records = nullptr;  // destination of the records, if `record`
  std::vector<OrderEntry>* order = nullptr;      // destination of the update order; null: none
};

// Scratch memory for folds, shared by the ranges of a shard.
struct FoldScratch {
  std::vector<uint32_t> rows;        // row numbers of one contribution
  KeyedSums fold;                    // the gradients of the fold
  std::vector<uint32_t> union_rows;  // row numbers of its keys
  // Only if the table has limits: for each key of the fold, or of one update, the first version at
  // which it was read.
  std::vector<int64_t> reads;
  // For an update that is recorded: its rows, and how many updates each row had when it was read.
  std::vector<uint32_t> rows_recorded, updates_as_read;
  // For one contribution whose policy changes gradients: the changed gradients, the rows as they
  // are now, and pointers to the rows as the worker read them.
  std::vector<float> transformed, rows_now;
  std::vector<const float*> rows_read;
  std::vector<uint32_t> rows_squared;  // row numbers, if the policy keeps mean squares
  std::vector<uint64_t> divisors;      // of the gradient sums of each update of a fold
  HeapBufferSource held_sums;          // memory of WorkerSums
};

// The steps of the optimizer in a range: one for each step, batch or single update that had
// samples, even if it had no rows in the range or the policy gave it the factor 0 there. So ranges
// that have the same updates have the same stamp, however their table is cut.
struct OptimizerSteps {
  int64_t stamp = 0, base = 0;  // RangeImage::stamp, step_base

  // The steps of the present optimizer, the t of Adam that counts by table.
  int64_t taken() const { return stamp - base; }

  // The present step. `schedule`: null if the rate is constant.
  optim::OptimizerStep At(const optim::Schedule* schedule, int64_t sample_clock,
                          const policies::Transform& transform) const {
    const float factor = schedule == nullptr ? 1 : schedule->FactorAt(sample_clock);
    return {.number = taken(),
            .rate = transform.rate * factor,
            .stamp = stamp,
            .groups_late = transform.groups_late,
            .begins_group = transform.begins_group};
  }

  // The next step begins. Rows that `store` reads catch up to it, also those that are not in it.
  void Count(RowTable* store) {
    ++stamp;
    store->settings().steps_taken = taken();
  }

  // Continues the count of a file or of a moved range. Of several files the largest stamp counts.
  void Continue(const RangeImage& image, RowTable* store) {
    stamp = std::max(stamp, image.stamp);
    base = std::max(base, image.step_base);
    store->settings().steps_taken = taken();
  }
};

class Range {
 public:
  using Admission = policies::Admission;

  // `totals`: those of the shard, which the range keeps up to date; null: none.
  Range(uint32_t id, uint64_t begin, uint64_t end, TableContext* table, FoldScratch* scratch,
        RangeTotals* totals = nullptr);

  // Admits steps [first, update.step] of worker update.rank. Only a push without rows may cover
  // several steps (first < update.step). `finished`: the worker's clock counts as infinite until
  // its next push. `now` becomes update.admitted_at.
  Admission Admit(absl::Time now, uint64_t incarnation, int64_t first, HeldUpdate update,
                  bool finished);

  // Sets rows, but only before the range has admitted a step. Afterwards the message is a late
  // duplicate: the call changes nothing and returns false. values: [keys, dim] or
  // [keys, dim + slots].
  bool AssignRows(absl::Span<const uint64_t> keys, absl::Span<const float> values, bool with_slots);

  // The process of worker `rank` has died. Another process pushes the steps that this range lacks.
  // The range keeps the updates of the dead process, and forgets its reads.
  void ForgetWorker(int rank);

  // Applies all held updates before the last evaluation: the queue of a fixed delay, in order, and
  // an open batch, which no further update will join. Rows that have moved in advance by updates in
  // flight go back (RowOptimizer::settles).
  void FinishDelayed();

  // Loads the part of a checkpoint file of another run whose keys are in this range: its rows, the
  // steps that a fixed delay held back, and an open batch, which is closed as it is. Call once for
  // each file before any step of this run, then call FinishLoad.
  absl::Status LoadCheckpoint(const RangeImage& image, BufferSource& source);
  // Continues the queue of a fixed delay: the first step that closes here applies the oldest step
  // of the queue. If the delay of this job is shorter, applies the surplus steps now, in order.
  void FinishLoad();

  // Resumes from the part of a checkpoint file of this very run whose keys are in this range: its
  // rows, its progress and all held updates, unchanged. The workers have new incarnations. Call
  // once for each file, before any step. The files may cut the table into other ranges than this
  // run.
  absl::Status ResumeCheckpoint(const RangeImage& image, BufferSource& source);

  // The shard has answered a read of worker `rank` for `step` with these rows. Remembers the time
  // of the read, and the rows if the policy asks for them. `kept`: the worker keeps the rows, if
  // the policy lets it (ESSP).
  void RememberRead(absl::Time now, int rank, int64_t step, absl::Span<const uint64_t> keys,
                    absl::Span<const float> rows, bool kept = false);

  // The range at this moment without its rows, in a time that does not depend on their number.
  // RowTable adds the rows (set_copies, CopyRows). `for_move`: a range move carries more than a
  // checkpoint. The range outlives the adding of rows. Their memory comes from `blocks`.
  RangeCopy Copy(bool for_move, std::shared_ptr<CopyBlocks> blocks) const;
  // The whole range as bytes, and back. A range move carries it. `left_out`, unless null: how many
  // rows of the store are not in it, because they count as absent.
  std::string Encode(uint64_t* left_out = nullptr) const;
  absl::Status Restore(const RangeImage& image, BufferSource& source);

  uint32_t id() const { return id_; }
  OrderedRange ordered() const { return {id_, order_}; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  const TableContext& table() const { return *table_; }
  const policies::RangeProgress& progress() const { return order_.progress(); }
  RowWrites* writes() { return writes_.get(); }  // null unless the table has kind KEY_VALUE
  // Null unless the policy lets workers keep rows (ESSP).
  Subscriptions* subscriptions() { return subscriptions_.get(); }
  RowTable& store() { return store_; }
  const RowTable& store() const { return store_; }
  // Memory for held updates and for rows as they were read.
  size_t held_bytes() const {
    return held_bytes_ + (pulled_row_snapshots_ == nullptr ? 0 : pulled_row_snapshots_->bytes()) +
           (gradients_ == nullptr ? 0 : gradients_->bytes());
  }

 private:
  using Order = policies::UpdateOrder<HeldUpdate>;
  friend Order;

  // The sink of the order.
  void OnAdmit(const HeldUpdate& update, int64_t first, bool finished);
  void OnCounted(HeldUpdate* update);
  void Apply(const HeldUpdate& update, const policies::Transform& transform);
  bool Keeps(const HeldUpdate& update);
  void Drop(const HeldUpdate& update);
  void Fold(HeldStep& step);
  void OnVersion();

  absl::Status ResumeHeld(const RangeImage& image, BufferSource& source);
  absl::Status Named(const absl::Status& status) const;
  void FoldInto(const HeldStep& step);
  optim::OptimizerStep FoldUnion(const HeldStep& step);
  absl::Span<const float> Transformed(const HeldUpdate& update, float factor, float compensation);
  void Compensate(const HeldUpdate& update, float compensation);
  void ForgetRead(const HeldUpdate& update);
  // `same_range`: this range encoded the bytes. If another one did, skips the parts that belong to
  // the keys of that range only.
  absl::Status DecodeMemory(absl::string_view bytes, bool same_range);
  // `share`: policies::Transform::share, or 0 if the update is dropped.
  void Count(const HeldUpdate& update, uint64_t divided_by, UpdateFate fate, float share);
  void Report();

  const uint32_t id_;
  const uint64_t begin_, end_;
  TableContext* const table_;
  FoldScratch* const scratch_;
  RowTable store_;
  Order order_;
  size_t held_bytes_ = 0;
  PullTimes pull_times_;
  int64_t now_us_ = 0;                        // time of the last admission
  std::unique_ptr<GradientMeter> gradients_;  // null: not measured
  // Each of these pointers is null unless the policy asks for the object.
  std::unique_ptr<PulledRowSnapshots> pulled_row_snapshots_;
  std::unique_ptr<MeanSquares> mean_squares_;
  std::unique_ptr<RowWrites> writes_;
  std::unique_ptr<Subscriptions> subscriptions_;
  std::unique_ptr<WorkerSums> worker_sums_;
  OptimizerSteps steps_;
  RangeTotals::Part part_;  // of this range
};

// Loads the rows of `image` that are in the range (LoadInto). RESOURCE_EXHAUSTED: NoMemoryFor.
absl::Status LoadRows(const RangeImage& image, Range* range);
// The error of a row that `range` could not create, for users: table, rows, bytes and a hint. It is
// a MemoryFullError.
absl::Status NoMemoryFor(const Range& range, const absl::Status& why);
// For users, when the margin of the budget has begun: the table that takes most memory in these
// ranges, which are those of a shard.
std::string NearlyFullText(const std::vector<Range*>& ranges, const MemoryBudget& budget);

// True if the range has admitted this step of the worker, so that a push of it is a duplicate.
inline bool HasAdmitted(const Range& range, int rank, int64_t step) {
  return step < range.progress().workers[static_cast<size_t>(rank)].admitted;
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RANGE_H_
