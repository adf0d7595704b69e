// Sums of dense gradients that do not wait for all workers (dense.quorum), on one simulated worker:
// what worker/quorum_sums.h does with threads, under the virtual clock; and meetings that do not wait for
// all (local_steps.quorum), which are such sums, as worker/quorum_meetings.h has them. To the collectives it
// is a reduction (worker/dense_reduction.h) whose requests come as rank 0 calls for sums, also while this
// worker computes; a step is over at once where no meeting is due, else once rank 0 lets this worker go on.
//
// What workers tell each other are letters, which arrive once and in the order in which they were sent
// from one worker to another.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_SIM_QUORUM_H_
#define TANDEM_SIM_SIM_QUORUM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "job/job.h"
#include "proto/activity.h"
#include "sim/judge.h"
#include "worker/dense_parameters.h"
#include "worker/dense_reduction.h"
#include "worker/meeting_replica.h"
#include "worker/quorum_caller.h"
#include "worker/quorum_member.h"

namespace tandem::sim {

class SimQuorum final : public worker::DenseReduction {
 public:
  using Letter = std::variant<worker::QuorumNews, worker::QuorumCall>;
  // What it has from whoever runs it.
  struct Outside {
    std::function<void(int to, const Letter& letter)>
        post;  // to a worker; to this one it is OnLetter
    std::function<absl::Time()> now;
    std::function<void(absl::Time at)> wake;  // then Wake is to be called
  };

  // Of worker `rank`. `plan` and `dense` outlive this; so does `judge`, which may be null.
  static absl::StatusOr<std::unique_ptr<SimQuorum>> New(const job::JobPlan& plan, int rank,
                                                        worker::DenseParameters& dense,
                                                        Judge* judge, Outside outside);

  void OnLetter(int from, const Letter& letter);
  void Wake();

  void BeforeStep() override;
  void Begin(absl::Span<float> gradient, const Step& step) override;
  void Ready(int64_t) override {}
  void Close() override {}
  void BeginGather() override { Settle(/*new_epoch=*/false, /*step=*/0); }
  // This worker has no data left in this epoch.
  void OutOfData();
  // Nobody has: the epoch ends with a sum of what is left, and all stand at `step`.
  void BeginEndOfEpoch(int64_t step);
  // Of a worker that meets: MeetingReplica::State.
  std::string State() override { return replica_ == nullptr ? "" : replica_->State(); }
  // All workers are killed in a save, and are resumed from it: of all that this one knew there is what it
  // has saved, and `dense_file`, which rank 0 has written. For all of them at one moment, rank 0 first,
  // between the save's gathering and its end.
  absl::Status Resume(const std::string& dense_file);

  const Request* Next() override;
  void OnDone() override;
  absl::Status failure() const override { return failure_; }
  int64_t needs_from() const override { return 0; }
  bool waits_for_close() const override { return false; }
  bool over() const override { return over_; }
  double samples_of_all() const override { return kUnknown; }
  // As QuorumMember has it.
  void TakeMissed(std::vector<int64_t>* missed);

  // What rank 0 has said that this worker waits for.
  Activity WaitingFor() const;

 private:
  enum class Stage { kIdle, kSum, kSummed, kCompare };  // of the first call

  SimQuorum(const job::JobPlan& plan, int rank, worker::DenseParameters& dense, Judge* judge,
            Outside outside)
      : plan_(plan), rank_(rank), judge_(judge), outside_(std::move(outside)), dense_(dense) {}
  absl::Status MakeParts();
  absl::Status LoseDense();
  QuorumJudge* judge() const { return judge_ == nullptr ? nullptr : judge_->quorum(); }
  void AddRest();
  void Tell(int64_t step);
  void Settle(bool new_epoch, int64_t step);
  void CallAll();
  void FinishCall();
  void GoOn();

  const job::JobPlan& plan_;
  const int rank_;
  Judge* const judge_;
  const Outside outside_;
  worker::DenseParameters& dense_;                   // what the worker computes with
  std::unique_ptr<worker::MeetingReplica> replica_;  // null: each step's gradient is summed
  std::unique_ptr<worker::QuorumMember> member_;
  std::unique_ptr<worker::QuorumCaller> caller_;       // rank 0's
  std::vector<worker::QuorumCaller::Addressed> said_;  // scratch
  std::deque<worker::QuorumCall> calls_;
  Stage stage_ = Stage::kIdle;
  bool over_ = true, settles_ = false, out_of_data_ = false;
  int64_t next_step_ = 0, settle_step_ = 0;
  int64_t waits_for_ = -1;
  absl::Time wakes_ = absl::InfiniteFuture();  // what was last asked for
  absl::Status failure_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_SIM_QUORUM_H_
