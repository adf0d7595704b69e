// Runs the requests of a worker's dense steps (dense_steps.h) on the group of all workers: by a
// collective, a codec, or a sum on GPUs. Counts the bytes, says what a request waits for, and
// writes dumps of the group's work.
//
// Thread safety: Abort, RequestDump, WaitingFor and TakeBytes by any thread; Run and Idle by one
// thread at a time; all other methods while no request runs.
#ifndef TANDEM_WORKER_DENSE_GROUP_RUNNER_H_
#define TANDEM_WORKER_DENSE_GROUP_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/wake_fd.h"
#include "collectives/codecs/codec.h"
#include "collectives/group.h"
#include "collectives/trace.h"
#include "job/job.h"
#include "proto/activity.h"
#include "worker/dense/dense_reduction.h"
#include "worker/dense/device_sum.h"

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

class GroupRunner {
 public:
  struct Options {
    Codec codec;        // codec of the job (proto/job.proto)
    uint64_t seed = 0;  // start of PowerSGD's random numbers
    // The folder for a dump of the group's work (collectives/dump.h), written when the group fails
    // or on request; empty: none.
    std::string dump_folder;
  };
  // `watch`: the watch that the group was made with; outlives this object.
  GroupRunner(std::unique_ptr<collectives::Group> group, AbortableWatch& watch,
              const Options& options);
  ~GroupRunner() { Idle(); }
  GroupRunner(const GroupRunner&) = delete;
  GroupRunner& operator=(const GroupRunner&) = delete;

  // Sums gradients in GPU memory instead of those of the request. `gradient` returns their address,
  // or, if `zero`, the address of zeros (no samples). Called before the first request.
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  void SumOnDevice(std::unique_ptr<DeviceSum> sum, DeviceGradient gradient);
  // Adds the time of each bucket to a separate lane of the trace. Null: no trace.
  void set_trace(collectives::Trace* trace) { trace_ = trace; }
  // GradientCodec::State of this rank's codec; empty without a codec.
  std::string CodecState() const;
  absl::Status SetCodecState(absl::string_view state);

  // Returns when the request has ended on this rank.
  absl::Status Run(const DenseReduction::Request& request);
  // Writes a dump if one has been requested. Called about once a second between requests by a
  // thread that waits for the next one, and by the destructor.
  void Idle();

  // Ends the running request, and all later ones.
  void Abort(absl::string_view why) { watch_.Abort(absl::CancelledError(why)); }
  // Not OK after Abort, or after the watch has been aborted.
  absl::Status Verdict() const { return watch_.Verdict(); }
  // The thread that uses the group writes the dump: within about a second if it waits, otherwise
  // after the next request, or in the destructor.
  void RequestDump() { dump_requested_ = true; }
  // The wait of about a second ago ("allreduce #3: waits 2s for worker 1 ...") and the worker that
  // is waited for; or no text.
  Activity WaitingFor() const;
  // The bytes that requests have sent from this rank since the last call.
  uint64_t TakeBytes() { return bytes_.exchange(0); }

 private:
  using Request = DenseReduction::Request;

  absl::Status Execute(const Request& request);
  absl::StatusOr<collectives::Work> Start(const Request& request);
  absl::Status WaitFor(const absl::StatusOr<collectives::Work>& work);
  absl::Status SumByCodec(const Request& request);
  absl::Status SumOnDevice(const Request& request);
  uint64_t BytesSent() const;
  void SetWaiting(absl::string_view text, int worker) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::unique_ptr<collectives::Group> group_;
  AbortableWatch& watch_;
  const std::string dump_folder_;
  std::unique_ptr<collectives::GradientCodec> codec_;  // null: no codec, or it is inside feedback_
  std::unique_ptr<collectives::ErrorFeedback> feedback_;  // null: no error feedback
  std::vector<float> sent_by_codec_;
  std::unique_ptr<DeviceSum> device_sum_;  // uses group_
  DeviceGradient device_gradient_;
  collectives::Trace* trace_ = nullptr;
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> dump_requested_{false};

  mutable absl::Mutex mutex_;
  Activity waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_GROUP_RUNNER_H_
