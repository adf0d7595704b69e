// Runs the reduction of a worker's dense parameters (dense_reduction.h) over the group of all
// workers. If the job has buckets, a separate thread reduces while gradients become ready;
// otherwise the caller's thread does. With quorum sums (quorum_steps.h) there is no reduction, and
// the sums use the group.
//
// Thread safety: Begin, Ready, Finish and GatherForCheckpoint by one thread; Abort, RequestDump and
// WaitingFor by any.
#ifndef TANDEM_WORKER_DENSE_DENSE_REDUCER_H_
#define TANDEM_WORKER_DENSE_DENSE_REDUCER_H_

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
#include "worker/dense/dense_reduction.h"
#include "worker/dense/device_sum.h"
#include "worker/dense/quorum_rounds.h"
#include "worker/dense/quorum_sums.h"

namespace tandem::worker {

// The name of the workers' group, at the rendezvous and in dumps.
inline constexpr char kWorkersGroup[] = "workers";

// Ends the workers' group from outside its links: when the scheduler says that the job has failed,
// or when this process ends. In a job only the scheduler decides which worker is lost. A worker
// therefore reports what it sees of its links to the scheduler (worker_shell.cc), and does not
// agree on it with other workers.
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
    Codec codec;           // codec of the job (proto/job.proto)
    uint64_t seed = 0;     // start of PowerSGD's random numbers
    // The folder for a dump of the group's work (collectives/dump.h), written when the group fails
    // or on request; empty: none.
    std::string dump_folder;
  };
  // `reduction`: null if SumByQuorum or MeetByQuorum is called before the first step. `watch`: the
  // watch that the group was made with; may be null; outlives this object.
  DenseReducer(std::unique_ptr<collectives::Group> group, AbortableWatch* watch,
               std::unique_ptr<DenseReduction> reduction, const Options& options);
  // Aborts a running request.
  ~DenseReducer();
  DenseReducer(const DenseReducer&) = delete;
  DenseReducer& operator=(const DenseReducer&) = delete;

  bool overlaps() const { return options_.overlap; }

  // From now on sync rounds of replicas do not wait for all workers (quorum_rounds.h).
  void MeetByQuorum(DenseParameters& dense, std::unique_ptr<collectives::AsyncGroup> mail,
                    const QuorumRounds::Options& options);
  // From now on sums do not wait for all workers (quorum_sums.h): a separate thread runs them, and
  // the reduction is not used. Called before the first step.
  void SumByQuorum(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
                   std::unique_ptr<collectives::AsyncGroup> mail,
                   const QuorumSums::Options& options);

  using Step = DenseReduction::Step;
  // The result of a step.
  struct StepResult {
    double samples_of_all = 0;    // the sum of n, or DenseReduction::kUnknown
    int64_t empty_steps = 1;      // if the sum is 0: as in DenseReduction
    uint64_t bytes = 0;           // sent by this rank
    std::vector<int64_t> missed;  // QuorumSums::Finish
  };

  // A model is about to compute a step.
  void BeforeStep() { quorum_ == nullptr ? reduction_->BeforeStep() : quorum_->BeforeStep(); }
  // A backward pass begins. `gradient` is padded as in DenseParameters, plus one element, and stays
  // valid until Finish. Called only if the reducer overlaps; otherwise Finish does everything.
  void Begin(absl::Span<float> gradient, const Step& step);
  // Elements from `first` to the end have their final values.
  void Ready(int64_t first);

  // Waits for the end of the step. A worker without data calls Finish without Begin.
  absl::Status Finish(absl::Span<float> gradient, const Step& step, StepResult* result);

  // On all ranks, between steps: gives rank 0 the state that only other ranks have. With a quorum,
  // the remaining gradients are summed first; `missed` is as in QuorumSums::Finish.
  absl::Status GatherForCheckpoint(std::vector<int64_t>* missed = nullptr);
  // With a quorum. OutOfData: this worker has no data left in this epoch. EndEpoch, on all ranks:
  // the epoch ends at `step` with a sum of all remaining gradients.
  absl::Status OutOfData() { return quorum_->OutOfData(); }
  absl::Status EndEpoch(int64_t step, std::vector<int64_t>* missed) {
    return quorum_->Settle(/*new_epoch=*/true, step, missed);
  }
  // The bytes that this rank has sent since the last step result or the last call of TakeBytes.
  uint64_t TakeBytes();
  // The state that only this rank has between steps: that of its codec (GradientCodec::State) or of
  // the reduction (DenseReduction::State). No job has both. Empty: no state.
  std::string State() const;
  absl::Status SetState(absl::string_view state);

  // Sums gradients in GPU memory instead of those that Finish gets. `gradient` returns their
  // address, or, if `zero`, the address of zeros (no samples). Called before the first Finish.
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  void SumOnDevice(std::unique_ptr<DeviceSum> sum, DeviceGradient gradient);

  // Adds the time of each bucket to a separate lane of the trace. Called before the first Begin;
  // null: no trace.
  void set_trace(collectives::Trace* trace) { trace_ = trace; }

  void Abort(absl::string_view why);
  // Any thread. The thread that uses the group writes the dump: within about a second if an
  // operation is waiting, otherwise after the next operation, or in the destructor.
  void RequestDump() { dump_requested_ = true; }
  // The wait of about a second ago ("allreduce #3: waits 2s for worker 1 ...") and the worker that
  // is waited for; or no text.
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
  // Used by the reducing thread while a step's gradient is reduced, otherwise by the caller's
  // thread.
  const std::unique_ptr<collectives::Group> group_;
  const std::unique_ptr<DenseReduction> reduction_;
  const Options options_;
  std::unique_ptr<collectives::GradientCodec> codec_;  // null: no codec, or it is inside feedback_
  std::unique_ptr<collectives::ErrorFeedback> feedback_;  // null: no error feedback
  std::vector<float> sent_by_codec_;
  int64_t samples_ = 0;  // samples of the step
  collectives::Trace* trace_ = nullptr;
  uint64_t counted_bytes_ = 0;           // sent by the group before the present step
  std::atomic<uint64_t> sent_bytes_{0};  // sent by the group, as of the last request
  std::unique_ptr<QuorumSteps> quorum_;  // null: all workers wait for all
  std::atomic<bool> dump_requested_{false};
  std::unique_ptr<DeviceSum> device_sum_;  // uses group_
  DeviceGradient device_gradient_;

  mutable absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ready_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements from here on are ready
  int64_t needs_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements needed for the next request
  bool reduced_ ABSL_GUARDED_BY(mutex_) = false;    // no more requests before Close
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Activity waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread loop_;  // runs if the reducer overlaps
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_REDUCER_H_
