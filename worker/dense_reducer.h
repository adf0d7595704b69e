// Runs the reduction of a worker's dense parameters (dense_reduction.h) over the group of all
// workers: on a thread of its own while gradients become ready, if the job has buckets, else on the
// caller's. Where sums need not wait for all (quorum_steps.h), there is none, and the group is theirs.
//
// Thread safety: Begin, Ready, Finish and GatherForSave by one thread, Abort, RequestDump and
// WaitingFor by any.
#ifndef TANDEM_WORKER_DENSE_REDUCER_H_
#define TANDEM_WORKER_DENSE_REDUCER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/wake_fd.h"
#include "collectives/codecs/codec.h"
#include "collectives/group.h"
#include "collectives/trace.h"
#include "job/job.h"
#include "proto/activity.h"
#include "worker/dense_reduction.h"
#include "worker/device_sum.h"
#include "worker/quorum_meetings.h"
#include "worker/quorum_sums.h"

namespace tandem::worker {

// The name of the workers' group: at the coordinator, and in dumps.
inline constexpr char kWorkersGroup[] = "workers";

// What ends the workers' group from outside its links: the scheduler's word that the job has failed,
// or the end of this process. In a job the scheduler alone says who is lost, so what a worker sees
// of its links it tells the scheduler (worker_shell.cc) and agrees on with nobody.
class AbortableWatch final : public collectives::GroupWatch {
 public:
  // Any thread; the first call counts.
  void Abort(absl::Status why);

  absl::Status Verdict() override;
  int fd() const override { return wake_.fd(); }
  absl::Status Agree(const absl::Status& seen) override { return seen; }

 private:
  WakeFd wake_;
  std::atomic<bool> aborted_{false};
  absl::Mutex mutex_;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
};

class DenseReducer {
 public:
  struct Options {
    bool overlap = false;  // reduce while gradients become ready
    Codec codec;           // of the job (proto/job.proto)
    uint64_t seed = 0;     // PowerSGD begins with it
    // What the group did is written here (collectives/dump.h) when it fails, or on request; empty:
    // nowhere.
    std::string dump_folder;
  };
  // `reduction`: null if sums or meetings of a quorum take its place, before the first step.
  // `watch` is the one the group was made with; may be null. It outlives this.
  DenseReducer(std::unique_ptr<collectives::Group> group, AbortableWatch* watch,
               std::unique_ptr<DenseReduction> reduction, const Options& options);
  // Aborts what is under way.
  ~DenseReducer();
  DenseReducer(const DenseReducer&) = delete;
  DenseReducer& operator=(const DenseReducer&) = delete;

  bool overlaps() const { return options_.overlap; }

  // From now on meetings of replicas do not wait for all workers (quorum_meetings.h).
  void MeetByQuorum(DenseParameters& dense, std::unique_ptr<collectives::AsyncGroup> mail,
                    const QuorumMeetings::Options& options);
  // From now on sums do not wait for all workers (quorum_sums.h): a thread of their own runs them, and
  // the reduction is not used. Before the first step.
  void SumByQuorum(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                   std::unique_ptr<collectives::AsyncGroup> mail,
                   const QuorumSums::Options& options);

  using Step = DenseReduction::Step;
  // What a step has told.
  struct StepResult {
    double samples_of_all = 0;    // the sum of n, or DenseReduction::kUnknown
    int64_t empty_steps = 1;      // if that is 0: as DenseReduction says
    uint64_t bytes = 0;           // that this rank sent
    std::vector<int64_t> missed;  // QuorumSums::Finish
  };

  // A model is about to compute a step.
  void BeforeStep() { quorum_ == nullptr ? reduction_->BeforeStep() : quorum_->BeforeStep(); }
  // A backward pass begins. `gradient` is padded as in DenseParameters, plus one element, and stays
  // until Finish. Only if it overlaps; else Finish does everything.
  void Begin(absl::Span<float> gradient, const Step& step);
  // Elements from `first` on have their final values.
  void Ready(int64_t first);

  // Waits for the end of the step (Begin may not have been called: a worker without data).
  absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result);

  // All ranks, between steps: rank 0 gets what only others have. With a quorum what is left of gradients
  // is summed, and `missed` is as QuorumSums::Finish has it.
  absl::Status GatherForSave(std::vector<int64_t>* missed = nullptr);
  // With a quorum: this worker has no data left in this epoch; then, on all ranks, the epoch ends at
  // `step` with a sum that has everything.
  absl::Status OutOfData() { return quorum_->OutOfData(); }
  absl::Status EndEpoch(int64_t step, std::vector<int64_t>* missed) {
    return quorum_->Settle(/*new_epoch=*/true, step, missed);
  }
  // That this rank has sent since a step's result, or this, last told: for what is above.
  uint64_t TakeBytes();
  // What this rank alone remembers between steps: its codec (GradientCodec::State), or the reduction
  // (DenseReduction::State); no job has both. Empty: nothing.
  std::string State() const;
  absl::Status SetState(absl::string_view state);

  // Gradients are summed where a GPU has them, not from what Finish is given: `gradient` says where
  // they are, or, if it is told so, that there are zeros (no samples). Before the first Finish.
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  void SumOnDevice(std::unique_ptr<DeviceSum> sum) { device_sum_ = std::move(sum); }
  void set_device_gradient(DeviceGradient gradient) { device_gradient_ = std::move(gradient); }
  bool sums_on_device() const { return device_sum_ != nullptr; }

  // Adds what each bucket took, on a lane of its own. Before the first Begin; null: nothing.
  void set_trace(collectives::Trace* trace) { trace_ = trace; }

  void Abort(absl::string_view why);
  // Any thread. What the group did is written by whoever uses it: within about a second if an
  // operation is waiting, else after the next one, or by the destructor.
  void RequestDump() { dump_requested_ = true; }
  // "allreduce #3: waits 2s for worker 1 ..." as of about a second ago, and that worker; or no text.
  Activity WaitingFor() const;

 private:
  using Request = DenseReduction::Request;

  void MakeCodec();
  absl::Status RunAll();
  absl::Status Run(const Request& request);
  QuorumSums::Run RunForQuorum();
  QuorumSums::Idle IdleOfQuorum();
  absl::Status Execute(const Request& request);
  absl::StatusOr<collectives::Work> Start(const Request& request);
  absl::Status SumByCodec(const Request& request);
  absl::Status SumOnDevice(const Request& request);
  absl::Status WaitFor(const absl::StatusOr<collectives::Work>& work);
  void Dump();
  absl::Status DumpIfNeeded(absl::Status status);
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Reduced() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AbortableWatch* const watch_;
  // Of the reducing thread while a step's gradient is reduced, else the caller's.
  const std::unique_ptr<collectives::Group> group_;
  const std::unique_ptr<DenseReduction> reduction_;
  const Options options_;
  std::unique_ptr<collectives::GradientCodec> codec_;     // null: none, or wrapped in feedback_
  std::unique_ptr<collectives::ErrorFeedback> feedback_;  // null: none
  std::vector<float> sent_by_codec_;
  int64_t samples_ = 0;  // of the step
  collectives::Trace* trace_ = nullptr;
  uint64_t counted_bytes_ = 0;           // sent by the group up to the end of the last step
  std::atomic<uint64_t> sent_bytes_{0};  // by the group, as of the last request
  std::unique_ptr<QuorumSteps> quorum_;  // null: all wait for all
  std::atomic<bool> dump_requested_{false};
  std::unique_ptr<DeviceSum> device_sum_;  // uses group_
  DeviceGradient device_gradient_;

  mutable absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ready_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements from here on are ready
  int64_t needs_from_ ABSL_GUARDED_BY(mutex_) = 0;  // ... must be, for the next request
  bool reduced_ ABSL_GUARDED_BY(mutex_) = false;    // nothing more before the step is closed
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Activity waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread loop_;  // if it overlaps
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_REDUCER_H_
