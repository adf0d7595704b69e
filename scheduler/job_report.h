// Sums over the cluster: what the live line shows and what the summary says at the end.
#ifndef TANDEM_SCHEDULER_JOB_REPORT_H_
#define TANDEM_SCHEDULER_JOB_REPORT_H_

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

// Adds `from` to `into`: counts, sums and buckets add, the larger maximum stays.
void MergeDistribution(const Distribution& from, Distribution* into);
// `from` to `into`, all but the name.
void MergeTableReport(const TableReport& from, TableReport* into);

// One reporting interval.
struct JobProgress {
  double seconds = 0;  // since the start of training
  // The worker furthest behind, or any one where all take each step together: its epoch, how much
  // of its share of the epoch, and its step, all from one report of it.
  int64_t epoch = 0;
  double epoch_fraction = 0;
  int64_t min_step = 0;
  int64_t max_step = 0;           // of the worker furthest ahead
  int64_t samples = 0;            // since the start
  double samples_per_second = 0;  // over this interval
  double loss = 0;                // mean per sample over this interval; NaN if there was none
  double auc = 0;                 // of the rows of this interval, mean over workers; 0 = none
  double done = 0;                // estimated fraction of the job
  double seconds_left = -1;       // -1 = unknown
  // From the last reports of the shards: the largest over tables of the mean, and of the maximum.
  double staleness_mean = 0, staleness_max = 0;
  int64_t clock_gap_max = 0;
};

// Where the time of one worker went, in seconds, over its steps with rows.
struct WorkerTimes {
  int64_t steps = 0;
  double computed = 0;       // rows in, gradients out
  double fetched = 0;        // reading training rows, beside other things
  double slept = 0;          // on purpose
  double paused = 0;         // evaluations and saves between steps, with waits for the others
  double shortest_read = 0;  // from a request for rows to its last answer; 0 = none yet
  double joined = 0;         // joining the others before the first step
};

// The whole job.
struct JobReport {
  double seconds = 0;  // from START to the end barrier
  int64_t samples = 0;
  int64_t max_step = 0;
  int64_t trained_steps = 0;  // of them, those with rows
  double samples_per_second = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // mean a sample of the last epoch
  // The same over the last tenth of the samples of each worker.
  double end_loss = std::numeric_limits<double>::quiet_NaN();
  // What rank 0 measured last, or of the best model; empty: nothing.
  std::string evaluation_json;
  absl::optional<BestEvaluation> best;           // with train.keep_best
  std::map<std::string, double> reported;        // by programs: the last value of each name
  std::vector<TableReport> tables;               // by table id, merged over shards
  std::map<std::string, uint64_t> updates_sent;  // by table, as the workers counted them
  std::vector<int64_t> samples_of;               // by rank
  std::vector<WorkerTimes> times_of;             // by rank
  std::vector<uint64_t> frames_resent_of;        // by rank: to servers, since no answer came
  // Seconds that reads of a worker lay parked, by the worker whose push freed them, on the shard where
  // that was most: [workers][workers].
  std::vector<std::vector<double>> waiting;
  Distribution in_flight_depth;                  // merged over workers
  std::vector<Distribution> dense_staleness_of;  // by worker: Progress.dense_staleness
  std::map<std::string, uint64_t> bytes;         // by kind of traffic; see JobBook
  std::map<std::pair<std::string, std::string>, Path>
      paths;                          // last choice, by (from, to and for what)
  std::string collectives_json;       // what rank 0 says of dense gradients; empty: nothing
  std::vector<std::string> warnings;  // what is rarely meant, a line each
  int64_t attempts = 0;               // how often the run has gone on from a save
  // It ended before its end, because it was told to.
  struct Stop {
    int64_t saved_step = -1;  // the last save has the steps before it; -1: there is none
    std::string failure;      // why it could not be saved; empty: it was
  };
  absl::optional<Stop> stop;
};

// Keeps the last word of each worker and shard.
//
// Both ends of a message count its bytes. Where a kind is counted by workers their sum stands;
// kinds that only servers know (range moves, say) are added.
class JobBook {
 public:
  static constexpr int kMaxByteKinds = 64;
  static constexpr size_t kMaxReported = 1000;  // names

  // `before`: what the run had done when it was saved, if it goes on.
  explicit JobBook(const job::JobPlan& plan, const RunRecord& before = RunRecord());

  void Start(absl::Time now) { started_ = reported_ = now; }

  enum class Noted {
    kTaken,       // the next one of that worker
    kNotItsTurn,  // it has come before, or comes too early, and counts for nothing
    kDropped      // the next one, without its values: there would be more than kMaxReported names
  };
  // INVALID_ARGUMENT: names or values that no program may report.
  absl::StatusOr<Noted> AddNote(int rank, const ProgramNote& note);
  // Number of the last one that counts; 0: none.
  int64_t LastNote(int rank) const { return notes_[static_cast<size_t>(rank)]; }
  // INVALID_ARGUMENT for reports that do not belong to this job.
  absl::Status AddProgress(int rank, const Progress& progress);
  absl::Status AddShardReport(const ShardReport& report);
  // False, and nothing is kept: too many paths already, or texts that are too long.
  bool AddPath(const std::string& from, const Path& path);
  // INVALID_ARGUMENT if it is not from rank 0, or too long.
  absl::Status SetCollectives(int rank, const Collectives& collectives);

  // A warning that workers read the same rows, once it is known that they do; then "".
  std::string TakeRowWarning();

  // What happened since the last call.
  JobProgress Interval(absl::Time now);
  // Whether rows were trained since then.
  bool HasNewSamples() const;
  // True once for each epoch that all workers have trained and that an evaluation or
  // the end follows.
  bool TakeEpochsTrained();
  JobReport Total(absl::Time now) const;
  // For a save, while all workers stand still.
  RunRecord Record(absl::Time now) const;

 private:
  const Progress& FurthestBehind() const;
  const Progress& FurthestAhead() const;
  void AddTimeLeft(JobProgress* progress);
  double Seconds(absl::Time now) const;
  void AddLoss(const Progress& progress);
  std::vector<TableReport> Tables() const;
  std::map<std::string, uint64_t> ServerBytes() const;
  std::vector<std::vector<double>> WaitingOf() const;
  double FractionDone() const;
  void AddStaleness(JobProgress* progress) const;

  const int64_t epochs_, max_steps_;
  const bool lockstep_;
  const RunRecord before_;
  std::vector<std::string> table_names_;
  const int shards_per_server_;
  absl::Time started_, reported_;
  int64_t reported_samples_ = 0;
  int64_t epochs_trained_ = 0;  // TakeEpochsTrained
  double begun_seconds_ = 0,
         begun_ = 0;  // the first interval with steps: its end, and what was done by then
  std::vector<Progress> workers_;    // last report of each rank; loss summed since Interval
  std::vector<ShardReport> shards_;  // last report of each shard
  int64_t loss_epoch_ = 0;           // of the two below: the last one that a report was of
  double epoch_loss_sum_ = 0, epoch_loss_samples_ = 0;
  std::string evaluation_json_;
  std::vector<int64_t> notes_;                   // number of the last one of each rank
  std::map<std::string, ReportedValue> values_;  // that programs have reported
  std::map<std::pair<std::string, std::string>, Path> paths_;
  std::string collectives_json_;
  std::string row_warning_;  // that was taken
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_JOB_REPORT_H_
