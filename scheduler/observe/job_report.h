// Totals over the cluster: the numbers of the live line and of the summary at the end.
#ifndef TANDEM_SCHEDULER_OBSERVE_JOB_REPORT_H_
#define TANDEM_SCHEDULER_OBSERVE_JOB_REPORT_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/wire.pb.h"
#include "scheduler/observe/report_check.h"

namespace tandem::scheduler {

// Adds the samples of `from` to `into`.
void MergeSamples(const SampleShare& from, SampleShare* into);
// The same for the sums of gradients.
void MergeGradients(const GradientStaleness& from, GradientStaleness* into);
// Adds all of `from` except its name to `into`.
void MergeTableReport(const TableReport& from, TableReport* into);

// One reporting interval.
struct JobProgress {
  double seconds = 0;  // since the start of training
  // Epoch, fraction of its share of that epoch, and step of the worker that is furthest behind. If
  // all workers step together, they are those of the latest report. All three are from one report.
  int64_t epoch = 0;
  double epoch_fraction = 0;
  int64_t min_step = 0;
  int64_t max_step = 0;           // of the worker furthest ahead
  int64_t samples = 0;            // since the start
  double samples_per_second = 0;  // about this interval (speed_meter.h); NaN: no worker trained
  bool evaluating = false;        // all workers evaluate now
  double loss = 0;                // mean per sample over this interval; NaN if no samples
  bool has_loss = true;           // samples of this interval have a loss, finite or not
  double auc = 0;                 // AUC of this interval's rows, mean over workers; 0 = none
  double done = 0;                // estimated fraction of the job
  double seconds_left = -1;       // -1 = unknown
  // From the last reports of the shards: the largest mean, and the largest maximum, of all tables.
  // NaN: none has arrived that counts an update.
  double staleness_mean = std::numeric_limits<double>::quiet_NaN();
  double staleness_max = std::numeric_limits<double>::quiet_NaN();
  int64_t clock_gap_max = 0;
  // The share of samples that counted, from the last reports of the shards; NaN: none has arrived.
  double data_applied = std::numeric_limits<double>::quiet_NaN();
  // The tables with rules by which rows come and go, in the order of their ids: rows, bytes and
  // row_counts, as in JobReport::tables, and nothing else.
  std::vector<TableReport> limited_tables;
};

// How one worker spent its time, in seconds, over its steps with rows.
struct WorkerTimes {
  int64_t steps = 0;
  double computed = 0;       // from rows to gradients
  double fetched = 0;        // reading training rows, at the same time as other work
  double slept = 0;          // on purpose, by the job's fault_injection.slow_workers
  double paused = 0;         // evaluations and checkpoints, with waits for the others
  double shortest_read = 0;  // from a request for rows to its last answer; 0 = none yet
  double joined = 0;         // joining the others before the first step
};

// The counted memory of a server, in bytes (server/rows/memory_budget.h).
struct ServerMemory {
  uint64_t used = 0, limit = 0;  // limit 0: not known, or none
};

// The whole job.
struct JobReport {
  // From the first START to the end barrier, with the time of restarts. The time between a
  // checkpoint and a later --resume does not count.
  double seconds = 0;
  int64_t samples = 0;
  int64_t max_step = 0;
  int64_t trained_steps = 0;  // steps with rows
  double samples_per_second = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();  // mean per sample of the last epoch
  // The same over the last tenth of the samples of each worker.
  double end_loss = std::numeric_limits<double>::quiet_NaN();
  // The last evaluation of rank 0, or that of the best model; empty: none.
  std::string evaluation_json;
  absl::optional<BestEvaluation> best;     // with train.keep_best
  std::map<std::string, double> reported;  // values of programs: the last one of each name
  std::vector<TableReport> tables;         // by table id, merged over shards
  // By rank, over all tables that are not frozen. Empty if `tables` have their workers
  // (ResolvedJob::CountsPairs).
  std::vector<WorkerUpdates> updates_of;
  std::map<std::string, uint64_t> updates_sent;  // by table, as the workers counted them
  std::vector<int64_t> samples_of;               // by rank
  std::vector<int64_t> skipped_steps_of;         // by rank: steps whose gradient was skipped
  std::vector<WorkerTimes> times_of;             // by rank
  std::vector<uint64_t> frames_resent_of;        // by rank: frames resent to servers
  // Seconds that reads of a worker waited, by the worker whose push allowed them:
  // [workers][workers]. Each row is from the shard where the worker waited longest. Empty in jobs
  // with many workers (ResolvedJob::CountsWaitsInPairs).
  std::vector<std::vector<double>> waiting;
  // Only in those jobs, by rank: seconds that reads of the worker waited, and seconds that reads
  // waited until a push of the worker allowed them. Each is from the shard with the longest.
  std::vector<double> waited, awaited;
  Distribution in_flight_depth;                  // merged over workers
  std::vector<Distribution> dense_staleness_of;  // by worker: Progress.dense_staleness
  std::map<std::string, uint64_t> bytes;         // by kind of traffic; see JobBook
  std::vector<ServerMemory> memory_of;           // by server
  // The last transport chosen, by (from, to and purpose).
  std::map<std::pair<std::string, std::string>, Path> paths;
  int64_t paths_left_out = 0;           // reports of paths that were too many to keep
  std::set<std::string> ways_left_out;  // their transports of rows and gradients
  std::string collectives_json;         // report of rank 0 on dense gradients; empty: none
  std::vector<std::string> warnings;    // about things that are rarely intended, a line each
  int64_t attempts = 0;                 // how often the run has been resumed
  // The user has ended the job before its end.
  struct Stop {
    int64_t checkpointed_step = -1;  // the last checkpoint has all steps before this one; -1: none
    std::string failure;             // why no checkpoint could be written; empty: one was written
    std::string why = "";            // who has asked for the end
  };
  absl::optional<Stop> stop;
};

// Keeps the last report of each worker and shard.
//
// Both ends of a message count its bytes. For a kind of traffic that workers count, the total is
// their sum. Kinds that only servers count (for example range moves) are added from the servers.
class JobBook {
 public:
  static constexpr size_t kMaxReported = 1000;  // names
  static constexpr size_t kMaxPaths = 1 << 16;

  // `before`: counts of the run up to the checkpoint that it resumes from; else empty.
  explicit JobBook(const job::ResolvedJob& plan, const RunRecord& before = RunRecord());

  // Training starts. `since`: the moment from which the seconds of the run count, if an earlier
  // attempt has set it; nullopt: they continue from the seconds of `before`.
  void Start(absl::Time now, absl::optional<absl::Time> since = absl::nullopt);

  enum class Noted {
    kTaken,       // the next note of that worker; counted
    kNotItsTurn,  // a repeated note, or one that comes too early; ignored
    kDropped      // the next note, but its values would be more than kMaxReported names
  };
  // INVALID_ARGUMENT: names or values that programs may not report.
  absl::StatusOr<Noted> AddNote(int rank, const ProgramNote& note);
  // Values that all workers have reported together. False: they would be more than kMaxReported
  // names, and are dropped.
  bool AddReduced(int64_t step, const std::map<std::string, double>& values);
  // Number of the last note that was counted; 0: none.
  int64_t LastNote(int rank) const { return notes_[static_cast<size_t>(rank)]; }
  // INVALID_ARGUMENT for reports that do not belong to this job.
  absl::Status AddProgress(int rank, const Progress& progress);
  absl::Status AddShardReport(const ShardReport& report);
  // The place where a new process of worker `rank` begins: the last known place at or before
  // `first_step`, the first step that some range lacks. nullopt: no such place is known.
  absl::optional<WorkerStart> StartOf(int rank, int64_t first_step) const;
  // Whether any place of this worker is known.
  bool KnowsPlace(int rank) const { return !places_[static_cast<size_t>(rank)].empty(); }
  // A new process begins at `start`. The counts of the dead process up to this place join those of
  // the new one.
  void OnReplaced(int rank, const WorkerStart& start);
  // The workers have left an epoch, so the places known so far are of no use any more.
  void ForgetPlaces();
  // False if there are too many paths already, or a text is too long. Then the path is not kept.
  // Reports of too many paths are counted.
  bool AddPath(const std::string& from, const Path& path);
  // INVALID_ARGUMENT if it is not from rank 0, or too long.
  absl::Status SetCollectives(int rank, const Collectives& collectives);

  // Returns a warning once if several workers turn out to read the same rows; else "".
  std::string TakeRowWarning();

  // The progress since the last call of Interval, without samples_per_second.
  JobProgress Interval(absl::Time now);
  // True if rows were trained since the last call of Interval.
  bool HasNewSamples() const;
  // True once for each epoch that all workers have trained, if an evaluation or the end follows.
  bool TakeEpochsTrained();
  JobReport Total(absl::Time now) const;
  double Seconds(absl::Time now) const;  // JobReport::seconds
  // The last report of each shard, by server and shard; empty before the first.
  const std::vector<ShardReport>& shards() const { return shards_; }
  // The record for a checkpoint. Called while all workers wait in its barrier.
  RunRecord Record(absl::Time now) const;

 private:
  // A fingerprint of the rows of this rank was `before`, and is `now`; 0: not known.
  void NoteRows(int rank, uint64_t before, uint64_t now);
  bool AddValues(int rank, int64_t step, const std::map<std::string, double>& values);
  void AddPlace(const Progress& worker, std::deque<Progress>* places) const;
  const Progress& FurthestBehind() const;
  const Progress& FurthestAhead() const;
  void AddTimeLeft(JobProgress* progress);
  void AddLoss(const Progress& progress);
  std::vector<TableReport> Tables() const;
  std::vector<WorkerUpdates> UpdatesOf() const;
  std::vector<double> Waited() const;
  std::vector<double> Awaited() const;
  std::map<std::string, uint64_t> ServerBytes() const;
  std::vector<ServerMemory> MemoryOf() const;
  std::vector<std::vector<double>> WaitingOf() const;
  double FractionDone() const;
  void AddStaleness(JobProgress* progress) const;
  void AddLimitedTables(JobProgress* progress) const;

  const int64_t epochs_, max_steps_;
  const bool lockstep_, pairs_, waits_in_pairs_;
  const ReportCheck check_;
  const RunRecord before_;  // in the form of this version
  // By rank: the counts before the present process; nullopt: there was none.
  std::vector<absl::optional<Progress>> before_workers_;
  // By rank: reports with places in the present epoch, oldest first. The steps of the last ones may
  // not have reached all servers, so there are more of them than a worker has steps in flight.
  const size_t max_places_;
  std::vector<std::deque<Progress>> places_;
  std::vector<std::string> table_names_;
  const int shards_per_server_;
  absl::Time started_, since_;  // started_: this attempt; since_: the run
  int64_t reported_samples_ = 0;
  int64_t epochs_trained_ = 0;  // TakeEpochsTrained
  struct Mark {
    double seconds = 0, done = 0;  // time, and the fraction of the job that was done
  };
  Mark begun_;                     // end of the first interval with steps
  Mark from_, next_;               // the speed is measured since `from_`; `next_` replaces it later
  std::vector<Progress> workers_;  // last report of each rank; loss summed since Interval
  std::vector<ShardReport> shards_;  // last report of each shard
  int64_t loss_epoch_ = 0;           // epoch of the next two fields: the latest one reported
  double epoch_loss_sum_ = 0, epoch_loss_samples_ = 0;
  std::string evaluation_json_;
  std::vector<int64_t> notes_;                   // number of the last note of each rank
  std::map<std::string, ReportedValue> values_;  // reported by programs
  std::map<std::pair<std::string, std::string>, Path> paths_;
  int64_t paths_left_out_ = 0;
  std::set<std::string> ways_left_out_;
  std::string collectives_json_;
  std::map<uint64_t, std::set<int>> ranks_by_rows_;  // by fingerprint of their rows
  std::string row_warning_;                          // returned by TakeRowWarning
  bool row_warning_taken_ = false;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_JOB_REPORT_H_
