// The evaluation after an epoch, on one worker. All workers enter a barrier, so that everybody's
// pushes are applied. Each worker then scores its share of the held-out rows with the latest rows
// of the tables, batch by batch. Workers send their shares to rank 0, and resend them until rank 0
// acknowledges. Rank 0 merges the shares, and all workers enter a second barrier.
//
// With train.keep_best the held-out rows are the validation rows. Rank 0 judges the result, and the
// value of the second barrier tells all workers what follows. The test rows have a round of their
// own, after the checkpoint of a best evaluation. A program may have no test rows; that round then
// has no result.
//
// Before the last evaluation of the job, the servers apply the updates that fixed delays still
// hold. The scheduler tells the servers at a barrier of its own, even if nothing is to be
// evaluated.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_EVALUATION_ROUND_H_
#define TANDEM_WORKER_EVALUATION_ROUND_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/buffer.h"
#include "proto/endpoint.h"
#include "worker/dense/dense_synchroniser.h"
#include "worker/early_stopping.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

// The name of the barrier that ends an evaluation is this and the number of the evaluation. Its
// release has the result.
inline constexpr absl::string_view kEvaluated = "evaluated ";

class EvaluationRound {
 public:
  // Without rows (`has_rows` false) the round only has the held updates of fixed delays applied.
  EvaluationRound(TrainerContext& context, DenseSynchroniser& synchroniser, bool has_rows);

  // Begins the round after an epoch.
  void Begin();
  // Begins the round of test rows, after the model was judged worth keeping.
  void BeginTest();
  // Does one thing that can be done; false if there is none.
  bool Advance(absl::Time now, TrainerEffects* effects);
  bool over() const { return stage_ == Stage::kOver; }
  // Whether an evaluation follows the epoch that just ended.
  bool IsDue() const;
  int64_t done() const { return number_; }  // evaluations so far
  // The verdict of the last round; without train.keep_best it says nothing.
  Verdict verdict() const { return verdict_; }
  // Rank 0 only.
  EarlyStopping& judge() { return judge_; }
  // Returns a report once per evaluation, on all ranks, so that the scheduler's knowledge of all
  // workers is of one moment. Rank 0 returns the result as JSON, the others an empty text.
  std::optional<std::string> TakeReport();
  // The report just taken is not (yet) the result of the run: an earlier evaluation was better, or
  // the model of this one is not in a checkpoint yet.
  bool aside() const { return Judged() && judge_.has_best(); }

  // The other workers have completed `evaluations` before this process has come.
  void SetDone(int64_t evaluations) { number_ = evaluations; }
  // A task of the evaluation has ended.
  void OnTaskDone() { task_running_ = false; }
  // False if the request does not belong to the evaluation.
  bool OnCompletion(uint64_t request);
  // Rank 0: a share has arrived. Shares of fast workers may arrive before the evaluation has begun
  // here.
  void OnShare(EndpointId from, const EvaluationShare& share, const Buffer& payload);
  // Rank 0 has received this worker's share of evaluation `number`.
  void OnShareTaken(uint64_t number);
  // The connection to rank 0 is lost, and with it any share in flight.
  void OnRankZeroLost(absl::Time now);

 private:
  enum class Stage {
    kBegin,
    kFinishDelayed,
    kBarrier,
    kFetch,
    kRead,
    kScore,
    kShare,
    kGather,
    kJudge,
    kEndBarrier,
    kOver
  };

  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }
  bool Run(TrainerTask task, TrainerEffects* effects);
  bool BeginIfDue();
  bool Judge();
  void ReadRows(absl::Time now);
  void KeepOwnShare(absl::Time now);
  bool Gather(absl::Time now, TrainerEffects* effects);
  void SendShare(absl::Time now);
  bool PassEndBarrier(absl::Time now);
  std::string WhereAndWhat(const std::string& result) const;
  bool KeepsBest() const { return context_.plan.job.train().has_keep_best(); }
  bool Judged() const { return KeepsBest() && rows_ == HeldOut::kValidation; }

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const bool has_rows_;
  EarlyStopping judge_;

  Stage stage_ = Stage::kOver;
  int64_t number_ = 0;             // evaluations done
  HeldOut rows_ = HeldOut::kTest;  // rows of this round
  Verdict verdict_;
  // An evaluation is due, not only the held updates of fixed delays.
  bool due_ = false;
  bool first_batch_ = false;
  bool task_running_ = false;
  StepSlot slot_;
  std::vector<uint64_t> reads_;
  // This worker's share, until rank 0 has it.
  EvaluationShare share_;
  Buffer payload_;
  bool share_taken_ = false;
  absl::Time next_send_;
  absl::Duration pause_;  // until the share is sent again
  // Rank 0: the shares of all workers.
  std::map<int, EvaluationShare> shares_;
  std::map<int, Buffer> payloads_;
  std::string result_;
  std::string told_;  // the result as the scheduler and the workers get it
  bool report_due_ = false;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_ROUND_H_
