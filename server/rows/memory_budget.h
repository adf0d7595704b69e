// The memory of a server process: a hard limit (cluster.memory_per_server), and the counted sum of
// everything that takes memory. All shards of the process share one budget. The sum is
//   the process without rows   measured before the first row, with the transport buffers of that
//                              time, and again at each tick: what is resident and not counted
//                              below belongs to it, for example frames in queues
//   rows                       pages of the arenas (page_arena.h): rows, slots, index, clocks
//   held updates, copies       updates that policies hold, rows as they were read, copies of rows
//                              for checkpoints, and files of a checkpoint that shards load
// So the process never has more resident memory than used(), except for what it takes between two
// ticks besides rows, held updates and copies.
//
// Only rows can be refused memory. The other parts are bounded, and a part of the limit is kept
// free for them: the margin (job::ReserveOf). Rows of tables with `eviction: AT_BUDGET` stay
// below the margin, so an arena never refuses memory because of them. If other rows take the
// margin, the job makes its last checkpoint and ends (nearly_full). At the limit an arena refuses
// memory, and the shard fails. A part of the margin is for copies, and copies of any checkpoint may
// use it. So a checkpoint evicts no row, and a run that resumes has room for about as many rows as
// the run before. If rows change so fast while a checkpoint is written that their copies need more,
// the shard gives the checkpoint up (copies_crowd). `nearly_full` does not count copies.
//
// Thread safety: any thread.
#ifndef TANDEM_SERVER_ROWS_MEMORY_BUDGET_H_
#define TANDEM_SERVER_ROWS_MEMORY_BUDGET_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/proc_files.h"
#include "proto/wire.pb.h"

namespace tandem::server {

class MemoryBudget {
 public:
  // The most bytes that a shard takes beyond those it has asked for (MayGrow): a huge page for rows
  // and one for their clocks, or one more where small blocks become huge pages.
  static constexpr size_t kSlackOfShard = size_t{8} << 20;
  // Memory of the process counts for nearly_full when this many measurements in turn have found it:
  // about a second. A burst of frames ends no job.
  static constexpr size_t kLooks = 20;

  // Bytes. `process`: of the process without rows. `margin`: of the limit, as above. `slack`:
  // rows of AT_BUDGET stop this many bytes before the margin, because memory grows by pages
  // (kSlackOfShard for each shard). `for_copies`: the part of the margin that is for copies.
  explicit MemoryBudget(size_t limit, size_t process = 0, size_t margin = 0, size_t slack = 0,
                        size_t for_copies = 0)
      : limit_(static_cast<int64_t>(limit)),
        margin_(static_cast<int64_t>(margin)),
        slack_(static_cast<int64_t>(slack)),
        for_copies_(static_cast<int64_t>(for_copies)),
        min_process_(static_cast<int64_t>(process)),
        process_(static_cast<int64_t>(process)),
        steady_process_(static_cast<int64_t>(process)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Counts memory for rows. False: the sum would exceed the limit, and nothing has changed.
  bool TryTake(size_t bytes);
  void Give(size_t bytes) { others_.fetch_sub(static_cast<int64_t>(bytes)); }

  // An amount that changes and cannot be refused. Thread safety: one thread at a time.
  class Part {
   public:
    // `budget` outlives this object, or is null. `copies`: counts copies of rows for a
    // checkpoint, or files of a checkpoint.
    explicit Part(MemoryBudget* budget, bool copies = false) : budget_(budget), copies_(copies) {}
    ~Part() { Set(0); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    void Set(size_t bytes);

   private:
    MemoryBudget* const budget_;
    const bool copies_;
    size_t bytes_ = 0;
  };

  // Measures the process again.
  void Measure();
  // `bytes`: the resident memory of the process. `before`: what was counted shortly before.
  void OnResident(size_t bytes, int64_t before = 0);

  size_t limit() const { return static_cast<size_t>(limit_); }
  size_t used() const { return static_cast<size_t>(std::max<int64_t>(0, process_ + counted())); }
  // Bytes that are still free; 0 at the limit.
  size_t room() const { return limit() - std::min(limit(), used()); }
  // True if rows have taken a part of the margin. Copies do not count: they are freed soon. The
  // process counts with the least that the last kLooks measurements have found.
  bool nearly_full() const { return steady_process_ + others_ > limit_ - margin_; }
  // The same with the process as the last measurement has found it.
  bool nearly_full_now() const { return process_ + others_ > limit_ - margin_; }
  // The same with the process as first measured, without the memory that shards need while they
  // load a checkpoint.
  bool nearly_full_of_rows() const { return min_process_ + others_ > limit_ - margin_; }
  // While a checkpoint is loaded, MayGrow and RoomToGrow also take the process as first measured.
  void set_loading(bool loading) { loading_ = loading; }
  // For AT_BUDGET (TableContext::may_grow): whether rows may take so many more bytes.
  bool MayGrow(size_t bytes) const { return RoomToGrow() >= static_cast<int64_t>(bytes); }
  // The bytes that MayGrow allows; negative if rows have taken more.
  int64_t RoomToGrow() const { return AboveMargin() - slack_; }
  // True if copies need more than their part, and less than half of the rest of the margin is free.
  // The shard then gives up a checkpoint that may fail.
  bool copies_crowd() const {
    return copies_ > for_copies_ && static_cast<int64_t>(room()) < (margin_ - for_copies_) / 2;
  }
  // Whether a shard may copy a range while the one before is written.
  bool MayCopyAhead() const { return static_cast<int64_t>(room()) >= margin_; }

 private:
  int64_t AboveMargin() const;
  int64_t counted() const { return others_ + copies_; }

  const int64_t limit_, margin_, slack_, for_copies_, min_process_;
  std::atomic<int64_t> process_;
  std::atomic<int64_t> steady_process_;  // the least of looks_
  absl::Mutex mutex_;
  std::deque<int64_t> looks_ ABSL_GUARDED_BY(mutex_);  // process_ at the last kLooks measurements
  std::atomic<bool> loading_{false};
  std::atomic<int64_t> others_{0};  // rows and held updates
  std::atomic<int64_t> copies_{0};
};

// The processes of the job on the host of server `server`, that process included.
int ProcessesOnHost(const View& view, int server);
// The limit of a job that does not set cluster.memory_per_server.
inline size_t DefaultMemoryLimit(const HostMemory& host, int processes) {
  return static_cast<size_t>(static_cast<double>(host.total) * 0.8 / std::max(processes, 1));
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_MEMORY_BUDGET_H_
