// One load of a checkpoint by all shards of a process. The load reads each file once, even if
// several shards need rows of it because the ranges are cut differently now.
//
// Each shard loads its ranges on its own thread. All shards share one order of files. The first
// shard that needs a file reads it, and shards that need different files read them at the same
// time. A file stays in memory until every shard that needs it has taken it. To bound the memory, a
// shard that is ahead of others waits while two such files for each shard are in memory. With
// little memory a shard waits while its file and those that other shards load do not fit together.
// The budget of the process counts these files as copies of rows, so no row is evicted for them.
//
// A load begins a new run or resumes the run that wrote the checkpoint:
//   - A new run gets the rows, and the steps that a fixed delay held back. Rows of dense tables are
//     not filled, since a worker assigns them. The files may have cut the table into other ranges,
//     under another salt. The load refuses another table or dim. With another optimizer, slots
//     start afresh.
//   - A resumed run gets rows (also those of dense tables), progress and all held updates as they
//     were, on any number of servers.
// In both, rows that missed steps under other settings of their optimizer than those of the job
// make up for these steps (RowOptimizer::CatchUp).
//
// If the rows of tables with AT_BUDGET do not all fit, each range loads about the same share of its
// rows, and roughly the oldest are left out. Otherwise the last ranges would get no rows, and a
// range without rows has none to evict for a new one.
//
// Errors are those of CheckpointReader and of the ranges. The error of one shard ends the load of
// all.
//
// Thread safety: any thread. Each shard calls Load once.
#ifndef TANDEM_SERVER_CHECKPOINT_LOAD_H_
#define TANDEM_SERVER_CHECKPOINT_LOAD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "job/job.h"
#include "proto/range_map.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/range.h"
#include "server/rows/memory_budget.h"

namespace tandem::server {

class CheckpointLoad {
 public:
  struct Options {
    bool resume = false;
    std::vector<std::string> only;  // a new run: load these tables only; empty: all
    int shards = 1;
    MemoryBudget* budget = nullptr;  // counts files in memory; outlives the load. Null: not counted
    // Called after each file that a shard has loaded, by the thread of this shard. A shard that
    // waits for another one makes progress, too.
    std::function<void()> on_progress = [] {};
  };
  // A range that `shard` will load. The plan of the table outlives the load.
  struct Wanted {
    const job::TablePlan* table = nullptr;
    uint64_t begin = 0, end = 0;  // positions; end 0 = 2^64
    int shard = 0;
    // Estimated bytes of memory per row, as from RangesToLoad. If it is too high, rows that fit may
    // be left out. Not used without Options::budget.
    double bytes_per_row = 0;
  };
  // Called once, by the first shard that needs the checkpoint.
  using Opener = std::function<absl::StatusOr<std::shared_ptr<const CheckpointReader>>()>;

  // `wanted`: the ranges of all shards.
  CheckpointLoad(Opener open, Options options, std::vector<Wanted> wanted);
  ~CheckpointLoad();
  CheckpointLoad(const CheckpointLoad&) = delete;
  CheckpointLoad& operator=(const CheckpointLoad&) = delete;

  // Loads the ranges of a shard, which are those in `wanted`. `source` provides the memory of the
  // values of held updates.
  absl::Status Load(int shard, const std::vector<Range*>& ranges, BufferSource& source);

  // CheckpointReader::ReadRecord, read once for all shards.
  absl::StatusOr<std::string> Record();

  // Ends the load: calls of Load that wait return `why`.
  void Cancel(const absl::Status& why);

 private:
  enum class State { kUnread, kReading, kRead };
  struct File {
    State state = State::kUnread;
    size_t waiting = 0;  // shards that have not taken the image
    absl::StatusOr<std::shared_ptr<const RangeImage>> image = nullptr;
  };
  // The file that a shard needs next, or loads: it reads the file or fills its ranges from it.
  struct At {
    size_t file = 0;
    bool loads = false;
  };

  // Estimates for one table. Memory is in bytes.
  struct TableRows {
    bool another_salt = false;                  // any file may have rows of any range
    double bytes_per_row = 0;                   // of Wanted
    double to_load = 0, begun = 0, loaded = 0;  // sums of estimates
    double taken = 0;                           // the memory of the loaded rows

    // Real bytes per estimated byte. The sums include a sixteenth of all estimates as if they were
    // exact, so the first rows change the factor little.
    double factor() const {
      const double right = (to_load + begun + loaded) / 16;
      return right > 0 ? (taken + right) / (loaded + right) : 1;
    }
    // The memory of the file's rows in the range [begin, end), without the factor.
    double Estimate(const CheckpointFile& file, uint64_t begin, uint64_t end) const;
  };
  // Rows of a file that a range is loading.
  struct Loading {
    TableRows* table = nullptr;
    double share = 1;     // the part of these rows that the range may load
    double estimate = 0;  // bytes of that part
  };

  absl::Status Prepare();
  absl::Status FindFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OrderFiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NeedOverlapping(const Wanted& wanted, const std::vector<size_t>& files)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Need(size_t file, const Wanted& wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsNeededBy(size_t file, int shard) const;
  // Decides which share of the file's rows in the range to load. EndRows follows after the load.
  Loading BeginRows(size_t file, const Range& range);
  void EndRows(const Loading& rows, size_t bytes);
  absl::Status LoadFiles(int shard, const std::vector<Range*>& ranges, BufferSource& source);
  absl::StatusOr<std::shared_ptr<const RangeImage>> Take(int shard, size_t file,
                                                         const TableContext& table);
  bool MustWait(int shard, size_t file) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::shared_ptr<const RangeImage>> Taken(size_t file)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t DecodedBytes(const CheckpointFile& file) const;
  absl::StatusOr<std::shared_ptr<const RangeImage>> Read(size_t file,
                                                         const TableContext& table) const;
  absl::Status LoadFile(size_t file, const RangeImage& image, const std::vector<Range*>& ranges,
                        BufferSource& source);
  bool Loads(const job::TablePlan& table) const;

  const Opener open_;
  const Options options_;
  const std::vector<Wanted> wanted_;
  // Set by Prepare, and constant afterwards.
  std::shared_ptr<const CheckpointReader> saved_;
  // Files of the manifest, in the order in which each shard loads them. Files of tables with
  // AT_BUDGET come last, so each shard has loaded its other rows by then. A file number is an index
  // into this list.
  std::vector<const CheckpointFile*> ordered_;
  const CheckpointFile* dense_ = nullptr;    // CheckpointReader::dense_part
  std::vector<std::vector<int>> needed_by_;  // shards, by file

  absl::Mutex mutex_;
  CondVar changed_;
  bool prepared_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // not OK: the load has ended
  absl::optional<absl::StatusOr<std::string>> record_ ABSL_GUARDED_BY(mutex_);
  std::vector<File> files_ ABSL_GUARDED_BY(mutex_);
  std::vector<At> at_ ABSL_GUARDED_BY(mutex_);  // by shard
  int held_ ABSL_GUARDED_BY(mutex_) = 0;        // files in memory that several shards need

  // For the shares of ranges (see above).
  std::map<const job::TablePlan*, TableRows> tables_ ABSL_GUARDED_BY(mutex_);
  double room_ ABSL_GUARDED_BY(mutex_) = 0;  // the largest RoomToGrow + loaded rows so far
};

// The ranges of server `server` in the view `map`. `plan` outlives the result.
std::vector<CheckpointLoad::Wanted> RangesToLoad(const job::ResolvedJob& plan, const RangeMap& map,
                                                 int server);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_LOAD_H_
