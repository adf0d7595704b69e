// A whole cluster in one process and one thread: the scheduler, shard and trainer cores that run in
// production, under a virtual clock and over a seeded network. Ranges move between shards in the
// middle of the run. Workers compute with any TaskRunner: by default with a toy model that proves
// what happened (toy_runner.h), or with real readers and models.
//
// What is checked as the toy runs, by the values that reads return (judge.h):
//   (1) every row is explained: no update lost, none applied twice, each worker's in order;
//   (2) no read is beyond its bound: lockstep policies see exactly the steps they should, others
//       everybody's steps below k - read_bound and their own below k - depth;
//   (3) evaluation sees every push, and creates no row;
//   (4) no worker starts a step further ahead of the slowest than its policies' bound allows.
// And at the end: all rows once more; with any runner sent = applied + merged + dropped (= what the
// toy computed), every range owned by exactly one shard, dense replicas equal. A run that does not end
// within `limit` of virtual time fails and says who waits for whom.
//
// The same options give the same run, bit for bit (trace_hash).
// Frames between workers and shards, and among workers, cross the network (sim/network.h) and pass
// by reference. Links to the scheduler are connections: nothing is lost or overtaken, except that
// barrier entries and releases, which are repeated until they succeed, may be dropped. Links of
// workers may break: what is on its way is lost, and the worker registers again on a new one.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_WORLD_H_
#define TANDEM_SIM_WORLD_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/buffer.h"
#include "base/random.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"
#include "server/server_core.h"
#include "server/shard_core.h"
#include "server/shard_save.h"
#include "sim/compute_time.h"
#include "sim/judge.h"
#include "sim/network.h"
#include "sim/sim_collectives.h"
#include "sim/toy_model.h"
#include "sim/trace.h"
#include "worker/task_runner.h"
#include "worker/trainer_core.h"

namespace tandem {

struct WorldOptions {
  uint64_t seed = 1;
  NetworkOptions network;
  ComputeTime compute;
  MakeTaskRunner make_runner;                             // null: the toy
  ToyModel::Options model;                                // of the toy
  absl::Duration fetch = absl::Microseconds(300);         // reading a batch
  absl::Duration view_delay = absl::Milliseconds(30);     // views reach each core up to this late
  double moves_per_second = 0;                            // of ranges, to random shards
  double barrier_drop = 0;                                // of entries and releases
  double breaks_per_second = 0;                           // of workers' links to the scheduler
  absl::Duration break_length = absl::Milliseconds(200);  // mean
  std::vector<absl::Duration> saves;                      // when to ask for a save
  bool save_at_end = false;
  bool evaluate = true;
  bool explain = true;      // check rows by their values; needs SGD at learning rate 1 everywhere
  bool log_events = false;  // keep events() (slow)
  absl::Duration tick = absl::Milliseconds(50);
  absl::Duration limit = absl::Minutes(10);
  size_t trace_lines = 300;
};

// What an observer of the shards sees, range by range and in order; see World::events.
struct RangeEvent {
  bool read = false;  // a read was answered; else steps [first, step] of the worker were admitted
  int rank = 0;
  int64_t first = 0, step = 0;
};

class World {
 public:
  // `plan` outlives the world.
  static absl::StatusOr<std::unique_ptr<World>> New(const JobPlan& plan,
                                                    const WorldOptions& options);
  ~World();

  // Runs the job to its end. The error says what is wrong, and who waited for whom.
  absl::Status Run();

  // The last lines of what happened.
  std::string TraceText() const { return trace_.Text(); }
  uint64_t trace_hash() const { return trace_.hash(); }
  absl::Duration elapsed() const { return now_ - absl::UnixEpoch(); }

  // After Run.
  std::vector<float> Row(uint32_t table, uint64_t key);  // as a server would answer an evaluation
  std::vector<float> DenseValues(int rank);
  std::vector<std::pair<uint32_t, uint64_t>> TrainedRows() const;  // of the toy
  const std::vector<UpdateRecord>& records() const { return records_; }
  TableStats Stats(uint32_t table) const;  // merged over all shards
  const JobReport& report() const { return scheduler_->report(); }
  int moves() const { return moves_; }
  int saves() const { return saves_done_; }
  int breaks() const { return breaks_; }  // of links to the scheduler
  int64_t steps(int rank) const;
  uint64_t frames_resent() const;
  // The most steps that any range whose policy holds updates had admitted of some worker and not
  // yet closed.
  int64_t most_open_steps() const { return most_open_steps_; }
  // With log_events: by range id, what was admitted and read, in order.
  const std::map<uint32_t, std::vector<RangeEvent>>& events() const { return events_; }
  // Of the toy: ranges that the update of (rank, step) has rows in, with log_events; the model.
  std::set<uint32_t> RangesOf(int rank, int64_t step) const { return judge_->RangesOf(rank, step); }
  const ToyModel& model() const { return *model_; }

 private:
  struct Event {
    absl::Time at;
    uint64_t order = 0;
    std::function<void()> run;
    bool operator<(const Event& other) const {  // for a heap with the earliest on top
      return at != other.at ? at > other.at : order > other.order;
    }
  };
  struct Server {
    uint64_t incarnation = 0;
    std::unique_ptr<ServerCore> core;
    std::vector<std::unique_ptr<ShardCore>> shards;
    std::vector<absl::Time> heard;                  // by shard: when the last task reaches it
    std::vector<std::deque<ShardTask>> tasks;       // by shard: heard of, not done
    std::vector<std::unique_ptr<ShardSave>> saves;  // by shard: one under way, or none
    uint64_t beats = 0;
  };
  struct Worker {
    uint64_t incarnation = 0;
    std::unique_ptr<TaskRunner> runner;
    std::unique_ptr<TrainerCore> core;
    std::unique_ptr<Random> random;
    int64_t reported_step = -1;  // in its last report to the scheduler
    bool stopped = false;
    std::unique_ptr<SimCollectives> collectives;  // replicas of dense parameters; else null
    std::optional<TrainerTask> waits_for_others;  // what the collectives were begun for
  };
  struct SchedulerLink {      // to the scheduler, one a node; nothing overtakes
    uint64_t connection = 0;  // a new number each time; links_.size() of them belong to one time
    bool broken = false;
    absl::Time last_up, last_down;
  };

  World(const JobPlan& plan, const WorldOptions& options);
  absl::Status Init();
  void MakeToy();
  absl::StatusOr<std::unique_ptr<TaskRunner>> NewRunner(int rank);
  absl::Status InitServers();
  absl::Status InitWorkers();

  // Time.
  void At(absl::Time at, std::function<void()> run);
  void After(absl::Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }
  void Tick(std::function<void()> tick, absl::Duration every);
  void StartClocks();
  void NextEvent();
  bool Ended() const;
  bool Settled() const;  // every shard knows the newest view and has what it says

  // The network between shards and workers.
  void Send(EndpointId from, std::vector<Outgoing>* out);
  void SendData(const Outgoing& out);
  void Deliver(EndpointId to, const Frame& frame);
  void CutSomebodyOff();

  // The scheduler and its links.
  void BreakSomeLink();
  void Register(EndpointId id);
  void ToScheduler(EndpointId from, const Control& control);
  void FromScheduler(int node, const Control& control);
  void StepScheduler(const SchedulerEvent& event);
  void MoveSomeRange();

  // Servers: what their shell would do (world_servers.cc, but for what follows a call of a shard).
  ShardCore& shard(EndpointId id) { return *servers_[id.index]->shards[id.shard]; }
  void OnServerControl(int index, const Control& control);
  void AfterServer(int index);
  void DoTasks(EndpointId id);
  void GoOnSaving(EndpointId id, const ShardTask& task);
  void AfterShard(EndpointId id);
  void LogEvents(EndpointId id);

  // Workers: what their shell and their model would do.
  void OnWorkerControl(int rank, const Control& control);
  void AfterTrainer(int rank);
  void StartTask(int rank, TrainerTask task);
  void StartCollective(int rank, TrainerTask task);
  void ProgressCollectives(int rank);
  Activity WaitingForOthers(int rank) const;
  void FinishTask(int rank, const TrainerTask& task);
  absl::Status RunTask(int rank, const TrainerTask& task);
  absl::Status MergeShares(int rank, const MergeSharesTask& task);
  absl::Status CheckSave(const std::string& dense_file);
  void CommitSave(const std::string& directory);

  // Checks.
  void Fail(const std::string& what);
  void CheckEnd();
  void CheckFinalRows();
  void CheckCounts();
  void CountOpenSteps(EndpointId id);
  std::string WhoWaits() const;
  bool DenseOnServers() const { return plan_.dense_table >= 0; }

  // Silence before a frame is sent again, whoever sent it: short, so that faults cost little virtual
  // time.
  static constexpr absl::Duration kResend = absl::Milliseconds(300);

  const JobPlan& plan_;
  const WorldOptions options_;
  std::unique_ptr<ToyModel> model_;  // null with another runner, and then so is the judge
  std::unique_ptr<Judge> judge_;
  EventTrace trace_;
  HeapBufferSource buffers_;
  Random random_;
  SimNetwork network_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t order_ = 0;
  std::vector<Event> queue_;  // a heap
  absl::Status failure_;

  std::unique_ptr<SchedulerCore> scheduler_;
  SchedulerEffects scheduler_effects_;
  std::vector<SchedulerLink> links_;
  std::vector<Outgoing> segments_;  // of collectives, on their way out; scratch
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::unique_ptr<Worker>> workers_;
  ShardEffects shard_effects_;
  ServerEffects server_effects_;
  TrainerEffects trainer_effects_;

  std::vector<UpdateRecord> records_;
  std::map<uint32_t, std::vector<RangeEvent>> events_;
  std::map<uint32_t, std::vector<int64_t>> admitted_;  // by range: by rank, with log_events
  std::shared_ptr<const RangeMap> first_map_;
  std::map<std::string, std::map<std::string, RangeImage>> saved_;  // by folder, then by file
  std::set<std::string> saving_;  // barriers of saves that workers have entered
  bool stopping_ = false;
  int moves_ = 0, breaks_ = 0, saves_done_ = 0, evaluations_ = 0;
  int64_t most_open_steps_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_SIM_WORLD_H_
