// Sums of gradients that do not wait for all workers (dense.quorum), on one worker: a thin shell
// around quorum_member.h and, at rank 0, quorum_caller.h. A separate thread takes part in every
// sum, whether or not this worker has a gradient for it, and steps its own model with each sum. All
// workers therefore have the same model after the same sum, to the bit, however far their own steps
// are. The worker computes with a copy of the model, taken before each step.
//
//   the worker's thread   BeforeStep copies the model; Finish adds the step's gradient and its
//                         samples to the waiting ones, tells rank 0, and waits until it may go on
//   the thread of sums    hears from rank 0 that a sum begins, takes the waiting gradients (or
//                         zeros), all-reduces them, and steps the model with the mean
//   at rank 0, a thread   hears the workers, and tells all of them which sum begins
//                         (quorum_caller.h)
//   and another thread    begins a sum when its grace ends, if the job has a grace
//
// A gradient is a sum over samples, sent with the number of samples. A late gradient therefore
// counts by its samples, like every other gradient in its sum.
//
// Workers exchange their news as messages of a group (collectives/async_group.h), separate from the
// links of the sums.
//
// Thread safety: any thread may call WaitingFor; one thread calls all other methods.
#ifndef TANDEM_WORKER_DENSE_QUORUM_SUMS_H_
#define TANDEM_WORKER_DENSE_QUORUM_SUMS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "collectives/async_group.h"
#include "collectives/group.h"
#include "proto/activity.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/dense_steps.h"
#include "worker/dense/group_runner.h"
#include "worker/dense/quorum_caller.h"
#include "worker/dense/quorum_member.h"

namespace tandem::worker {

// Opens the group in which workers exchange news. All ranks of `group` call this function. `host`:
// the host name by which the other workers reach this one.
absl::StatusOr<std::unique_ptr<collectives::AsyncGroup>> OpenQuorumMail(
    collectives::Group& group, const std::string& host, absl::Duration deadline,
    AbortableWatch& watch, const collectives::GroupSecurity& security);

class QuorumSums final : public DenseSteps {
 public:
  struct Options {
    QuorumLeader::Options leader;  // used at rank 0
    absl::optional<collectives::Algorithm> algorithm;
    absl::Duration deadline = absl::Minutes(1);  // for the delivery of a message
  };
  // `dense`: the parameters that the worker computes with. `model`: made in the same way as
  // `dense`. `runner` runs the sums, only on the thread of sums. `dense` and `runner` outlive this
  // object.
  QuorumSums(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
             std::unique_ptr<collectives::AsyncGroup> mail, GroupRunner& runner,
             const Options& options);
  ~QuorumSums() override;

  // Copies the present model into the parameters.
  void BeforeStep() override;
  absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result) override;
  absl::Status OutOfData() override;
  // Afterwards the parameters are the model, with the optimizer state.
  absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) override;
  Activity WaitingFor() const override ABSL_LOCKS_EXCLUDED(mutex_);

  // Before Settle: adds a gradient to its sum without telling rank 0.
  void Add(absl::Span<float> gradient, const Step& step) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the first step: copies the parameters into the model.
  absl::Status SetModel() ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t sums() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Bytes = std::array<int64_t, 3>;
  // A message that is being sent; the group uses its memory until it is sent.
  struct Sent {
    collectives::AsyncGroup::Ticket ticket = 0;
    std::unique_ptr<Bytes> bytes;
  };

  absl::Status Tell(const QuorumNews& news);
  absl::Status AwaitContinue(std::vector<int64_t>* missed);
  absl::Status Send(const Bytes& bytes, int to, int64_t tag) ABSL_LOCKS_EXCLUDED(sent_mutex_);
  // `idles`: on the thread of sums, which runs GroupRunner::Idle while it waits.
  absl::StatusOr<Bytes> Receive(int from, int64_t tag, bool idles, int* who);

  // Rank 0 only.
  void Lead();
  absl::Status Lead(int worker, const QuorumNews& news) ABSL_LOCKS_EXCLUDED(caller_mutex_);
  absl::Status CallAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(caller_mutex_);
  absl::Status Call(int worker, const QuorumCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(caller_mutex_);
  void EndGraces();

  // On the thread of sums.
  void SumAll();
  absl::StatusOr<QuorumCall> NextForMe();
  absl::Status Sum();
  absl::Status CompareModels();
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<collectives::AsyncGroup> mail_;
  GroupRunner& runner_;
  const Options options_;
  int64_t step_ = 0;  // next step; used by the worker's thread

  absl::Mutex caller_mutex_;
  QuorumCaller caller_ ABSL_GUARDED_BY(caller_mutex_);
  std::vector<QuorumCaller::Addressed> calls_ ABSL_GUARDED_BY(caller_mutex_);  // scratch memory
  CondVar called_;  // the end of a grace may have changed
  bool calls_end_ ABSL_GUARDED_BY(caller_mutex_) = false;

  absl::Mutex sent_mutex_;
  std::deque<Sent> sent_ ABSL_GUARDED_BY(sent_mutex_);

  mutable absl::Mutex mutex_;
  CondVar changed_;
  QuorumMember member_ ABSL_GUARDED_BY(mutex_);
  std::deque<QuorumCall> for_me_ ABSL_GUARDED_BY(mutex_);  // at rank 0: calls to itself
  bool go_on_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t settle_step_ ABSL_GUARDED_BY(mutex_) = 0;
  Activity activity_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread summer_, leading_, graces_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_SUMS_H_
