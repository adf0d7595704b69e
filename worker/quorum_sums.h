// Sums of gradients that do not wait for all workers (dense.quorum), on one worker: the thin shell
// around quorum_member.h and, at rank 0, quorum_caller.h. A thread of its own takes part in every
// sum, whether this worker has a gradient for it or not, and steps a model of its own with each; so
// all workers have the same model after the same sum, to the bit, however far their own steps are.
// What the worker computes with is a copy, taken before each step.
//
//   the worker's thread   BeforeStep: copies the model; Finish: adds the step's gradient and its samples
//                         to what is waiting, tells rank 0, and waits until it may go on
//   the thread of sums    is told by rank 0 that a sum begins: takes what is waiting (zeros, if there is
//                         nothing), all-reduces it, and steps the model with the mean of the sum
//   at rank 0, a thread   hears the workers, and tells all what begins (quorum_caller.h)
//   and one more          begins what only the end of a grace begins, where there is one
//
// Gradients are sums over samples beside their number, so one that is late counts by its samples in
// the sum that it comes to, as every other one there.
//
// What workers tell each other travels as messages of a group (collectives/async_group.h), beside the
// links of the sums.
//
// Thread safety: all but WaitingFor by one thread; that by any.
#ifndef TANDEM_WORKER_QUORUM_SUMS_H_
#define TANDEM_WORKER_QUORUM_SUMS_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
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
#include "worker/dense_parameters.h"
#include "worker/dense_reduction.h"
#include "worker/quorum_caller.h"
#include "worker/quorum_member.h"
#include "worker/quorum_steps.h"

namespace tandem::worker {

// The group by which workers tell each other what they do, opened over `group`, whose ranks all call
// this. `host`: by which the others reach this one.
absl::StatusOr<std::unique_ptr<collectives::AsyncGroup>> OpenQuorumMail(
    collectives::Group& group, const std::string& host, absl::Duration deadline,
    collectives::GroupWatch* watch);

class QuorumSums final : public QuorumSteps {
 public:
  struct Options {
    QuorumLeader::Options leader;  // rank 0's
    absl::optional<collectives::Algorithm> algorithm;
    absl::Duration deadline = absl::Minutes(1);  // for a message to be taken
  };
  // Runs a collective of all workers until it has ended; on the thread of sums alone.
  using Run = std::function<absl::Status(const DenseReduction::Request&)>;
  // Called by the same thread about once a second while there is nothing to sum.
  using Idle = std::function<void()>;

  // `dense`: what the worker computes with, and outlives this; `model`: made like it. `watch` may be
  // null.
  QuorumSums(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
             std::unique_ptr<collectives::AsyncGroup> mail, collectives::GroupWatch* watch, Run run,
             Idle idle, const Options& options);
  // What is under way must have been aborted, or be over on all ranks.
  ~QuorumSums() override;

  // The parameters become the model of now.
  void BeforeStep() override;
  absl::Status Finish(absl::Span<float> gradient, const DenseReduction::Step& step,
                      std::vector<int64_t>* missed) override;
  absl::Status OutOfData() override;
  // The parameters become the model slots and all.
  absl::Status Settle(bool new_epoch, int64_t step, std::vector<int64_t>* missed) override;
  Activity WaitingFor() const override ABSL_LOCKS_EXCLUDED(mutex_);

  // Before Settle: a gradient for its sum, which nobody else is told of.
  void Add(absl::Span<float> gradient, const DenseReduction::Step& step)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Before the first step: the model becomes the parameters of now.
  absl::Status SetModel() ABSL_LOCKS_EXCLUDED(mutex_);
  uint64_t sums() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Bytes = std::array<int64_t, 3>;
  // Of a message on its way: its memory is the group's until then.
  struct Sent {
    collectives::AsyncGroup::Ticket ticket = 0;
    std::unique_ptr<Bytes> bytes;
  };

  absl::Status Tell(const QuorumNews& news);
  absl::Status AwaitGoOn(std::vector<int64_t>* missed);
  absl::Status Send(const Bytes& bytes, int to, int64_t tag) ABSL_LOCKS_EXCLUDED(sent_mutex_);
  // `idle`: called now and then meanwhile; may be null.
  absl::StatusOr<Bytes> Receive(int from, int64_t tag, const Idle& idle, int* who);

  // Rank 0.
  void Lead();
  absl::Status Lead(int worker, const QuorumNews& news) ABSL_LOCKS_EXCLUDED(caller_mutex_);
  absl::Status CallAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(caller_mutex_);
  absl::Status Call(int worker, const QuorumCall& call)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(caller_mutex_);
  void EndGraces();

  // The thread of sums.
  void SumAll();
  absl::StatusOr<QuorumCall> NextForMe();
  absl::Status Sum();
  absl::Status CompareModels();
  void Fail(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<collectives::AsyncGroup> mail_;
  collectives::GroupWatch* const watch_;
  const Run run_;
  const Idle idle_;
  const Options options_;
  int64_t step_ = 0;  // of the worker's thread: the next one

  absl::Mutex caller_mutex_;
  QuorumCaller caller_ ABSL_GUARDED_BY(caller_mutex_);
  std::vector<QuorumCaller::Addressed> calls_ ABSL_GUARDED_BY(caller_mutex_);  // scratch
  CondVar called_;  // when a grace ends may have changed
  bool calls_end_ ABSL_GUARDED_BY(caller_mutex_) = false;

  absl::Mutex sent_mutex_;
  std::deque<Sent> sent_ ABSL_GUARDED_BY(sent_mutex_);

  mutable absl::Mutex mutex_;
  CondVar changed_;
  QuorumMember member_ ABSL_GUARDED_BY(mutex_);
  std::deque<QuorumCall> for_me_ ABSL_GUARDED_BY(mutex_);  // at rank 0
  bool go_on_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t settle_step_ ABSL_GUARDED_BY(mutex_) = 0;
  Activity activity_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::thread summer_, leading_, graces_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_SUMS_H_
