// Runs dense sums that do not wait for all workers (dense.quorum) on one simulated worker. It does
// under the virtual clock what worker/dense/quorum_sums.h does with threads. Sync rounds that do
// not wait for all workers (local_steps.quorum, worker/dense/quorum_rounds.h) are such sums, too.
// For the collectives this is a reduction (worker/dense/dense_reduction.h). Its requests come when
// rank 0 calls for a sum, also while this worker computes. A step is over at once if no sync round
// is due, and otherwise when rank 0 releases this worker.
//
// Workers send each other letters. Each letter arrives once, in the order of sending from one
// worker to another.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_QUORUM_H_
#define TANDEM_TOOLS_SIM_SIM_QUORUM_H_

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
#include "tools/sim/observer.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/quorum_caller.h"
#include "worker/dense/quorum_member.h"
#include "worker/dense/sync_replica.h"

namespace tandem::sim {

class SimQuorum final : public worker::DenseReduction {
 public:
  using Letter = std::variant<worker::QuorumNews, worker::QuorumCall>;
  // Functions that the caller provides.
  struct Outside {
    std::function<void(int to, const Letter& letter)>
        post;  // to a worker; to this one it is OnLetter
    std::function<absl::Time()> now;
    std::function<void(absl::Time at)> wake;  // asks the caller to call Wake() at this time
  };

  // For worker `rank`. `plan`, `dense` and `observer` must outlive this.
  static absl::StatusOr<std::unique_ptr<SimQuorum>> New(const job::ResolvedJob& plan, int rank,
                                                        worker::DenseParameters& dense,
                                                        SumObserver& observer, Outside outside);

  void OnLetter(int from, const Letter& letter);
  void Wake();

  void BeforeStep() override;
  void Begin(absl::Span<float> gradient, const Step& step) override;
  void Ready(int64_t) override {}
  void Close() override {}
  void BeginGather() override { Settle(/*new_epoch=*/false, /*step=*/0); }
  // This worker has no data left in this epoch.
  void OutOfData();
  // No worker has data left: the epoch ends with a sum of the remaining gradients, and all are
  // at `step`.
  void BeginEndOfEpoch(int64_t step);
  // SyncReplica::State; empty without sync rounds.
  std::string State() override { return replica_ == nullptr ? "" : replica_->State(); }
  // Resumes this worker from a checkpoint, as if all workers had been killed in it. Only the
  // worker's saved state remains, and `dense_file`, which rank 0 has written. Call it for all
  // workers at the same time, rank 0 first, between the gathering of the checkpoint and its end.
  absl::Status Resume(const std::string& dense_file);

  const Request* Next() override;
  void OnDone() override;
  absl::Status failure() const override { return failure_; }
  int64_t needs_from() const override { return 0; }
  bool waits_for_close() const override { return false; }
  bool over() const override { return over_; }
  double samples_of_all() const override { return kUnknown; }
  // See QuorumMember.
  void TakeMissed(std::vector<int64_t>* missed);

  // The activity that this worker waits for, according to rank 0.
  Activity WaitingFor() const;

 private:
  enum class Stage { kIdle, kSum, kSummed, kCompare };  // of the first of calls_

  SimQuorum(const job::ResolvedJob& plan, int rank, worker::DenseParameters& dense,
            SumObserver& observer, Outside outside)
      : plan_(plan),
        rank_(rank),
        observer_(observer),
        outside_(std::move(outside)),
        dense_(dense) {}
  absl::Status MakeParts();
  absl::Status LoseDense();
  void AddRest();
  void Tell(int64_t step);
  void Settle(bool new_epoch, int64_t step);
  void CallAll();
  void FinishCall();
  void Continue();

  const job::ResolvedJob& plan_;
  const int rank_;
  SumObserver& observer_;
  const Outside outside_;
  worker::DenseParameters& dense_;                // the parameters that the worker computes with
  std::unique_ptr<worker::SyncReplica> replica_;  // null: each step's gradient is summed
  std::unique_ptr<worker::QuorumMember> member_;
  std::unique_ptr<worker::QuorumCaller> caller_;       // only on rank 0
  std::vector<worker::QuorumCaller::Addressed> said_;  // scratch
  std::deque<worker::QuorumCall> calls_;
  Stage stage_ = Stage::kIdle;
  bool over_ = true, settles_ = false, out_of_data_ = false;
  int64_t next_step_ = 0, settle_step_ = 0;
  int64_t waits_for_ = -1;
  absl::Time wakes_ = absl::InfiniteFuture();  // the last time given to outside_.wake
  absl::Status failure_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_QUORUM_H_
