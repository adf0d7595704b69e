// The training loop of one worker: a deterministic state machine over client and barriers. Reading
// files, computing gradients, summing dense gradients over the workers and writing files are tasks
// it hands to its shell and whose completion comes back as an event, so the same loop runs in
// production and in the simulator.
//
// One step k of a worker:
//   fetch the batch -> read its rows (up to `depth` steps ahead) -> may it start? -> compute ->
//   push gradient sums to every shard, and synchronise the dense part -> k + 1
// The step is the worker's clock and the sequence of its pushes. How an epoch ends:
//   lockstep jobs   a worker without data goes on with n = 0 until a step has sum of n = 0;
//   others          a worker without data pushes END_OF_EPOCH (its clock is infinite), meets the
//   others
//                   at a barrier, and all go on at the same step after an empty catch-up push.
//
// Thread safety: none needed; one thread. Batches and gradients of a slot belong to the task while
// one is running on it, and to the core otherwise.
#ifndef TANDEM_WORKER_TRAINER_CORE_H_
#define TANDEM_WORKER_TRAINER_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client_core.h"
#include "data/batch.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/activity.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"
#include "worker/dense_parameters.h"

namespace tandem {

// One step's memory. Rows stay in the frames that brought them, and gradients are written into the
// frames that will carry them.
struct StepSlot {
  int64_t step = -1;
  int64_t epoch = 0;
  Batch batch;
  std::vector<PulledRows> rows;                     // by sparse input; cleared by who has used them
  std::vector<absl::Span<float* const>> gradients;  // by sparse input: where that of each key goes
  std::vector<ClientCore::PreparedPush> pushes;     // by policy group; what `gradients` are in
  PulledRows dense_rows;                            // of dense parameters on servers, by block
  std::vector<float> dense;           // the same in one piece (padded); empty with allreduce
  std::vector<float> dense_gradient;  // padded, plus one element for n
  double loss_sum = 0;
  double recent_auc = 0;  // of recent training samples; 0 = unknown
  // Once synchronised: sum of n over the workers, and what that took.
  double samples_of_all = 0;
  uint64_t bytes_sent = 0;
};

struct TrainerTask {
  enum class Kind {
    kFetch,        // fill slot->batch with the next batch of slot->epoch; samples 0 = ran out
    kCompute,      // rows -> gradients, dense_gradient, loss_sum (sums over samples)
    kSynchronise,  // dense_gradient and n summed over the workers and, unless the sum of n is 0,
                   // applied to the dense parameters; sets slot->samples_of_all, bytes_sent
    kFetchTest,    // fill slot->batch with the next test batch; `first`: from the start
    kForward,      // score slot->batch, add to this evaluation's sums
    kEvaluationShare,  // fill *part and *payload: this worker's share of the evaluation
    kMergeParts,       // rank 0: parts and payloads of all ranks -> *text, JSON
    kGatherSlots,      // sharded optimizer, every rank: rank 0 gets the slots of all blocks
    kSaveDense,        // rank 0: begin the save `path`, write *text (bytes of the dense file) there
    kCommitSave,       // rank 0: all files of the save `path`, of `step`, are there: commit it
  };
  Kind kind = Kind::kFetch;
  StepSlot* slot = nullptr;
  bool first = false;
  EvaluationShare* part = nullptr;
  Buffer* payload = nullptr;
  const std::map<int, EvaluationShare>* parts = nullptr;  // by rank
  const std::map<int, Buffer>* payloads = nullptr;
  std::string* text = nullptr;
  std::string path;
  int64_t step = 0;
};

// What happened in a step, for tests and event logs.
struct StepTrace {
  int64_t step = 0;
  int64_t samples = 0;
  double loss_sum = 0;
  int64_t clock_gap = 0;
  int64_t in_flight = 0;
};

// A read or a push of a step, from request to the last answer; for traces.
struct TransferTrace {
  bool push = false;
  int64_t step = 0;
  absl::Time start, end;
};

struct TrainerEffects {
  std::vector<Outgoing> out;
  std::vector<TransferTrace> transfers;
  std::vector<TrainerTask> tasks;
  std::vector<StepTrace> steps;
  std::vector<std::string> log;
  void Clear() {
    out.clear();
    tasks.clear();
    steps.clear();
    transfers.clear();
    log.clear();
  }
};

class TrainerCore {
 public:
  struct Options {
    int rank = 0;
    uint64_t incarnation = 0;
    ClientCore::Options client;
    absl::Duration control_resend = absl::Seconds(1);
    bool save = false;           // save at the end (the scheduler knows where)
    bool evaluate = true;        // false if there is no test data
    int64_t estimated_rows = 0;  // of this worker's share, for the progress line; 0 = unknown
    std::string save_path;       // the model folder, where saves go
    uint64_t run = 0;            // View.run
  };

  // `dense` may have zero elements (then it is never synchronised). All references outlive the
  // core.
  static absl::StatusOr<std::unique_ptr<TrainerCore>> New(const JobPlan& plan,
                                                          const Options& options,
                                                          DenseParameters& dense,
                                                          BufferSource& buffers);
  ~TrainerCore();

  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view, TrainerEffects* effects);
  // Frames from shards, workers and the scheduler (BarrierRelease, Command START / SAVE / STOP).
  void OnFrame(absl::Time now, const ParsedFrame& frame, TrainerEffects* effects);
  void OnTaskDone(absl::Time now, const TrainerTask& task, const absl::Status& status,
                  TrainerEffects* effects);
  void OnTick(absl::Time now, TrainerEffects* effects);
  // The connection to a shard or another worker has been lost, and with it what was on its way.
  void OnLost(absl::Time now, EndpointId peer);

  // True after STOP: nothing more will happen.
  bool finished() const { return phase_ == Phase::kFinished; }
  // Not OK: the job must fail for this reason (data, NaN, a request past its deadline).
  const absl::Status& failure() const { return failure_; }

  int64_t step() const { return step_; }
  int64_t epoch() const { return epoch_; }
  // What the loop is doing, or whom it waits for, for this process's beats. `synchroniser`: what a
  // kSynchronise task under way waits for, as its runner says.
  Activity Doing(absl::Time now, const Activity& synchroniser) const;
  // Grows whenever the loop comes on.
  uint64_t progress_count() const { return progress_count_; }
  const ClientCore& client() const { return *client_; }

 private:
  enum class Phase {
    kWaitStart,
    kAssign,  // dense parameters travel to the servers
    kTraining,
    kDrain,    // end of an epoch: all pushes acknowledged?
    kEndPush,  // not lockstep: END_OF_EPOCH, then the barrier
    kCatchUp,  // not lockstep: the empty push up to the common step
    kEvaluation,
    kSave,
    kEnd,
    kFinished,
  };
  enum class EvaluationStage {  // phase_part_ during kEvaluation
    kBegin,
    kFinishDelayed,
    kMeet,
    kFetch,
    kRead,
    kScore,
    kSum,
    kGather,
    kMerge
  };
  enum class SlotState { kFree, kFetching, kFetched, kReading, kReady, kComputing };
  struct Lane {  // a slot of the pipeline
    StepSlot slot;
    SlotState state = SlotState::kFree;
    std::set<uint64_t> reads;
    absl::Time read_since;
  };
  struct PushUnderWay {
    int64_t step = 0;
    absl::Time since;
  };
  struct Save {
    std::string name;      // of its barrier; empty: none is wanted
    std::string path;      // the model folder
    uint64_t request = 0;  // number of the command that asked for it; 0: the one at the end
    int64_t step = -1;     // steps before it are in the save; -1 = not agreed yet
    bool ready = false;    // pushes nothing more until it is done
    bool gathering = false, gathered = false;  // a sharded optimizer's slots
    int part = 0;  // rank 0: 1 reading, 2 dense file written, 3 committed
    bool task_running = false;
    std::set<uint64_t> reads;
    std::vector<float> rows;  // dense parameters with slots, from servers
    std::string text;         // bytes of the dense file
  };
  struct Barrier {
    BarrierEnter entry;  // no name: not entered
    bool released = false;
    int64_t max_value = 0;
    absl::Time next_send;
  };

  TrainerCore(const JobPlan& plan, const Options& options, DenseParameters& dense,
              BufferSource& buffers);
  absl::Status Init();

  // Does everything that can be done now, then collects what the client wants sent.
  void Advance(absl::Time now, TrainerEffects* effects);
  bool AdvanceOnce(absl::Time now, TrainerEffects* effects);
  void CollectOutgoing(absl::Time now, TrainerEffects* effects);

  bool AdvanceAssign(absl::Time now);
  bool AdvanceTraining(absl::Time now, TrainerEffects* effects);
  bool SkipToOpenStep(absl::Time now);
  void CancelReads(Lane* lane);
  bool StartFetch(TrainerEffects* effects);
  bool StartReads(absl::Time now);
  bool StartCompute(absl::Time now, TrainerEffects* effects);
  void PreparePushes(StepSlot* slot);
  void AskHowFar(absl::Time now, uint32_t group);
  void AfterCompute(absl::Time now, TrainerEffects* effects);
  bool AdvanceSynchronisation(absl::Time now, TrainerEffects* effects);
  void PushGradients(absl::Time now, StepSlot* slot);
  uint64_t PushEmpty(absl::Time now, uint32_t group, int64_t first, int64_t step, uint8_t flags);
  void PushEmptyAll(absl::Time now, int64_t first, int64_t step, uint8_t flags);
  void FinishStep(absl::Time now, TrainerEffects* effects);
  void EndEpoch();
  void ResetPipeline();
  bool AdvanceDrain(absl::Time now);
  bool AdvanceEndPush(absl::Time now);
  bool AdvanceCatchUp(absl::Time now);
  bool NextEpochOrEnd();
  bool AdvanceEvaluation(absl::Time now, TrainerEffects* effects);
  bool EnterStage(EvaluationStage stage);
  bool BeginEvaluation();
  void AddEvaluationTask(TrainerTask::Kind kind, TrainerEffects* effects);
  void ReadTestRows(absl::Time now);
  bool GatherShares(absl::Time now, TrainerEffects* effects);
  bool EndEvaluation(absl::Time now);
  bool AdvanceSave(absl::Time now, TrainerEffects* effects);
  bool AdvanceEnd(absl::Time now);
  bool AdvanceRequestedSave(absl::Time now, TrainerEffects* effects);
  bool HeldForSave() const;
  bool SaveAtBarrier(absl::Time now, Save* save, TrainerEffects* effects);
  std::string DenseFile(const Save& save);
  void SendReport(absl::Time now, bool done);
  void SendEvaluationShare(absl::Time now);
  void OnControl(const ParsedFrame& frame);
  void OnSaveCommand(const Command& command);
  void SendDone(EndpointId to, uint64_t id);
  void OnClientCompletion(absl::Time now, const ClientCore::Completion& completion,
                          TrainerEffects* effects);
  void Fail(absl::Status status);
  void SendControl(EndpointId to, const Control& control, Buffer values = Buffer());
  // True once the barrier is released; enters it first, again and again until then. The scheduler
  // does `action` (to the folder `path`, if it is a save) before it lets all go on.
  bool PassBarrier(absl::Time now, const std::string& name, int64_t value,
                   BarrierEnter::Action action = BarrierEnter::NONE, const std::string& path = "");
  bool DenseIn(uint32_t group) const;
  std::vector<TableKeys> GroupKeys(const StepSlot& slot, uint32_t group) const;
  size_t LaneIndex(int64_t step) const {
    return static_cast<size_t>(step - lane_shift_) % lanes_.size();
  }
  Lane& LaneOf(int64_t step) { return lanes_[LaneIndex(step)]; }
  const Lane& LaneOf(int64_t step) const { return lanes_[LaneIndex(step)]; }
  int64_t UnacknowledgedSteps() const;
  int64_t ClockGap() const;
  bool DenseOnServers() const { return plan_.dense_table >= 0; }
  bool LastEpoch() const;
  int64_t StepLimit() const;
  bool HasDelay() const;
  uint64_t PullDense(absl::Time now, absl::Span<float> rows, uint8_t flags);

  const JobPlan& plan_;
  const Options options_;
  DenseParameters& dense_;
  BufferSource& buffers_;
  std::vector<std::unique_ptr<UpdatePolicy>> policies_;  // by group
  std::unique_ptr<ClientCore> client_;

  Phase phase_ = Phase::kWaitStart;
  std::vector<float> assigned_rows_;  // what rank 0 assigns, until it has
  absl::Status failure_;
  bool have_view_ = false, started_ = false, stop_ = false;
  uint64_t progress_count_ = 0;

  // Training.
  std::vector<Lane> lanes_;
  int64_t step_ = 0;    // the step being worked on; all before it are pushed
  int64_t pushed_ = 0;  // steps pushed
  int64_t epoch_ = 0;
  int64_t epoch_first_step_ = 0;
  int64_t next_fetch_ = 0, next_read_ = 0;
  int64_t open_step_ = 0;   // what shards said that had closed a step of ours: go on there
  int64_t lane_shift_ = 0;  // steps skipped so far; lanes go by the others
  bool fetching_ = false, exhausted_ = false;
  bool synchronising_ = false;         // of step_; under way
  bool synchronised_ = false;          // ... and done
  bool epoch_ended_ = false;           // a step with sum of n = 0 has been seen
  std::set<uint64_t> lockstep_reads_;  // whose answers tell the sum of n of the last closed step
  uint64_t probe_ = 0;                 // an empty read that asks for clocks; 0 = none under way
  absl::Time next_probe_ = absl::InfinitePast();
  int64_t step_clock_gap_ = 0, step_in_flight_ = 0;  // of step_
  std::map<uint64_t, PushUnderWay> pushes_;          // unacknowledged, by request

  // Barriers and control.
  std::vector<Outgoing> control_out_;
  std::map<std::string, Barrier> barriers_;
  int phase_part_ = 0;  // progress within a phase of several parts
  int64_t common_step_ = 0;
  // A save asked for in the middle: all agree on a step, finish the steps before it, and save. The
  // scheduler asks for the next one when all have answered the last.
  Save requested_;
  uint64_t save_command_ = 0;  // the last one taken; answered if none is under way
  std::string plan_barrier_;
  int64_t save_value_ = 0;  // this worker can stop before this step
  Save final_save_;         // at the end of the job

  // Evaluation.
  int64_t evaluations_ = 0;
  bool first_test_batch_ = false;  // the next test batch is the first one
  bool evaluate_now_ = false;
  StepSlot test_slot_;
  bool task_running_ = false;
  std::set<uint64_t> reads_;  // of evaluations
  EvaluationShare part_;
  Buffer part_payload_;
  bool part_acknowledged_ = false;
  absl::Time next_part_send_;
  absl::Duration part_pause_;
  std::map<int, EvaluationShare> parts_;
  std::map<int, Buffer> payloads_;
  std::string text_;

  // Reporting.
  absl::Time next_report_ = absl::InfinitePast();
  int64_t samples_ = 0, epoch_samples_ = 0;
  double loss_sum_ = 0;
  int64_t loss_samples_ = 0;
  double recent_auc_ = 0;
  std::string evaluation_json_;
  Distribution in_flight_;
  uint64_t collective_bytes_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_WORKER_TRAINER_CORE_H_
