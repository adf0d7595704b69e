// The evaluation after an epoch, on one worker. All meet, so that everybody's pushes are in; each
// worker scores its share of the rows that were held out with the latest rows of the tables, batch by
// batch; shares go to rank 0, again and again until it says that it has them; rank 0 merges them; and
// all meet again.
//
// With train.keep_best the rows are those for validation. Rank 0 judges the result, and the value of
// the second meeting tells all what follows. The test rows have a round of their own, once the model
// of a best evaluation is saved; a program may have none, and that round then has no result.
//
// Before the last one of the job, what fixed delays still hold is applied: at a barrier of its own,
// at which the scheduler tells the servers; also if nothing is to be evaluated.
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
#include "worker/best_judge.h"
#include "worker/dense_synchroniser.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

class EvaluationRound {
 public:
  // Without rows only what fixed delays hold is looked after.
  EvaluationRound(TrainerContext& context, DenseSynchroniser& synchroniser, bool has_rows);

  // An epoch is over.
  void Begin();
  // The model is one to keep: what does it make of the test rows?
  void BeginTest();
  // Does one thing that can be done; false if there is none.
  bool Advance(absl::Time now, TrainerEffects* effects);
  bool over() const { return stage_ == Stage::kOver; }
  // Whether the epoch that is over is followed by an evaluation.
  bool IsDue() const;
  int64_t done() const { return number_; }  // evaluations so far
  // Of the last round; nothing to do without train.keep_best.
  Verdict verdict() const { return verdict_; }
  // Rank 0.
  BestJudge& judge() { return judge_; }
  // Once for each evaluation a report is due, on all ranks, so that what is known of them is of one
  // moment: on rank 0 with this result as JSON, on others with nothing.
  std::optional<std::string> TakeReport();
  // Of the report that was taken: it is not (yet) what the run has come to. A better one was before, or
  // its model is yet to be saved.
  bool aside() const { return Judged() && judge_.has_best(); }

  // A task of the evaluation has ended.
  void OnTaskDone() { task_running_ = false; }
  // False if the request is none of the evaluation's.
  bool OnCompletion(uint64_t request);
  // Rank 0: a share has come. Shares of quick workers may come before an evaluation has begun here.
  void OnShare(EndpointId from, const EvaluationShare& share, const Buffer& payload);
  // Rank 0 has this worker's share of evaluation `number`.
  void OnShareTaken(uint64_t number);
  // The connection to rank 0 is lost, and with it a share that was on its way.
  void OnRankZeroLost(absl::Time now);

 private:
  enum class Stage {
    kBegin,
    kFinishDelayed,
    kMeet,
    kFetch,
    kRead,
    kScore,
    kShare,
    kGather,
    kJudge,
    kMeetAgain,
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
  bool MeetAgain(absl::Time now);
  std::string WhereAndWhat(const std::string& result) const;
  bool KeepsBest() const { return context_.plan.job.train().has_keep_best(); }
  bool Judged() const { return KeepsBest() && rows_ == HeldOut::kValidation; }

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const bool has_rows_;
  BestJudge judge_;

  Stage stage_ = Stage::kOver;
  int64_t number_ = 0;             // evaluations done
  HeldOut rows_ = HeldOut::kTest;  // of this round
  Verdict verdict_;
  bool due_ = false;  // as opposed to what fixed delays hold
  bool first_batch_ = false;
  bool task_running_ = false;
  StepSlot slot_;
  std::vector<uint64_t> reads_;
  // This worker's share, until rank 0 has it.
  EvaluationShare share_;
  Buffer payload_;
  bool share_taken_ = false;
  absl::Time next_send_;
  absl::Duration pause_;  // until it is sent again
  // Rank 0: everybody's.
  std::map<int, EvaluationShare> shares_;
  std::map<int, Buffer> payloads_;
  std::string result_;
  bool report_due_ = false;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_EVALUATION_ROUND_H_
