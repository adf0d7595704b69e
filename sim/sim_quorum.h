// Sums of dense gradients that do not wait for all workers (dense.quorum), on one simulated worker:
// what worker/quorum_sums.h does with threads, under the virtual clock. To the collectives it is a
// reduction (worker/dense_reduction.h) whose requests come as rank 0 calls for sums, also while this
// worker computes; a step is over once rank 0 lets this worker go on.
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
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "job/job.h"
#include "proto/activity.h"
#include "sim/judge.h"
#include "worker/dense_parameters.h"
#include "worker/dense_reduction.h"
#include "worker/quorum_caller.h"
#include "worker/quorum_member.h"

namespace tandem::sim {

class SimQuorum final : public worker::DenseReduction {
 public:
  using Letter = std::variant<worker::QuorumNews, worker::QuorumCall>;
  // Sends a letter to a worker; to this one it is OnLetter.
  using Post = std::function<void(int to, const Letter& letter)>;

  // Of worker `rank`. `dense` outlives this; so does `judge`, which may be null.
  static absl::StatusOr<std::unique_ptr<SimQuorum>> New(const job::JobPlan& plan, int rank,
                                                        worker::DenseParameters& dense,
                                                        Judge* judge, Post post);

  void OnLetter(int from, const Letter& letter);

  void BeforeStep() override;
  void Begin(absl::Span<float> gradient, const Step& step) override;
  void Ready(int64_t) override {}
  void Close() override {}
  void BeginGather() override { Settle(/*new_epoch=*/false, /*step=*/0); }
  // This worker has no data left in this epoch.
  void OutOfData() { post_(0, worker::QuorumNews{worker::QuorumNews::Says::kOutOfData, 0}); }
  // Nobody has: the epoch ends with a sum of what is left, and all stand at `step`.
  void BeginEndOfEpoch(int64_t step) { Settle(/*new_epoch=*/true, step); }

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

  SimQuorum(int rank, worker::DenseParameters& dense,
            std::unique_ptr<worker::DenseParameters> model,
            const worker::QuorumMember::Options& options,
            const worker::QuorumLeader::Options& leader, Judge* judge, Post post);
  void Settle(bool new_epoch, int64_t step);
  void FinishCall();

  const int rank_;
  Judge* const judge_;
  const Post post_;
  worker::QuorumMember member_;
  worker::QuorumCaller caller_;                        // rank 0's
  std::vector<worker::QuorumCaller::Addressed> said_;  // scratch
  std::deque<worker::QuorumCall> calls_;
  Stage stage_ = Stage::kIdle;
  bool over_ = true, settles_ = false;
  int64_t next_step_ = 0, settle_step_ = 0;
  int64_t waits_for_ = -1;
  absl::Status failure_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_SIM_QUORUM_H_
