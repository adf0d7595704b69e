// Synchronises the dense parameters by allreduce: sums the gradients of all workers, then takes one
// optimizer step with the mean. Every worker does the same to its own copy.
//
// Gradients are reduced at once after the backward pass, or in buckets while it goes on (Li et al.
// 2020, "PyTorch Distributed"): a bucket is a run of the flat gradient, the buckets follow one
// another in the order in which a backward pass fills them, from the end of the buffer to its
// start, and the first is small so that something travels early. All workers reduce the buckets in
// the same order, so a bucket that is ready early waits for those before it.
//
// The sum of n travels as one more element. On a 16-bit wire gradients are multiplied by a power of
// two near 1 / (samples of all workers) before they are rounded, and n travels apart, in f32; so it
// does with a codec (codecs/codec.h) and with a sharded optimizer. The latter (ZeRO stage 1,
// Rajbhandari et al. 2020) gives each worker a share of the blocks: gradients are reduced to who
// has the block, which updates it, and the values go round: the traffic of an all-reduce.
//
// Thread safety: Begin, Ready and Finish by one thread, Abort, RequestDump and WaitingFor by any.
#ifndef TANDEM_WORKER_DENSE_SYNCHRONISER_H_
#define TANDEM_WORKER_DENSE_SYNCHRONISER_H_

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
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/codecs/codec.h"
#include "collectives/group.h"
#include "collectives/meeting/wake_fd.h"
#include "collectives/trace.h"
#include "collectives/types.h"
#include "job/job.h"
#include "proto/activity.h"
#include "worker/dense_parameters.h"
#include "worker/device_sum.h"

namespace tandem {

// Elements [begin, begin + count) of the flat gradient, in the order in which they are reduced:
// from the end to the start, the first about a quarter of `bucket_bytes`. One bucket if that is 0.
std::vector<Piece> GradientBuckets(int64_t count, int64_t bucket_bytes);

// The name of the workers' group: at the coordinator, and in dumps.
inline constexpr char kWorkersGroup[] = "workers";

// The algorithm that a job names: the one of that name, in lower case. Nothing for AUTO.
absl::optional<Algorithm> DenseAlgorithm(const JobPlan& plan);

// What ends the workers' group from outside its links: the scheduler's word that the job has failed,
// or the end of this process. In a job the scheduler alone says who is lost, so what a worker sees
// of its links it tells the scheduler (worker_shell.cc) and agrees on with nobody.
class AbortableWatch final : public GroupWatch {
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

class DenseSynchroniser {
 public:
  struct Options {
    DataType wire = DataType::kF32;  // kF32, kF16 or kBF16
    int64_t bucket_bytes = 0;
    absl::optional<Algorithm> algorithm;  // none: the group chooses
    int64_t batch = 1;                    // samples of a step of one worker, for 16-bit wires
    Codec codec;                          // of the job (proto/job.proto)
    bool sharded_optimizer = false;
    bool on_device = false;  // SumOnDevice will be called
    uint64_t seed = 0;       // PowerSGD begins with it
    // What the group did is written here (collectives/dump.h) when it fails, or on request; empty:
    // nowhere.
    std::string dump_folder;
  };
  static Options OptionsOf(const JobPlan& plan);

  // `watch` is the one the group was made with; may be null. It and `dense` outlive this.
  DenseSynchroniser(std::unique_ptr<Group> group, AbortableWatch* watch, DenseParameters& dense,
                    const Options& options);
  // Aborts what is under way.
  ~DenseSynchroniser();
  DenseSynchroniser(const DenseSynchroniser&) = delete;
  DenseSynchroniser& operator=(const DenseSynchroniser&) = delete;

  bool overlaps() const { return options_.bucket_bytes > 0; }

  // A backward pass begins, of `samples` samples. `gradient` is padded as in DenseParameters, plus
  // one element, and stays until Finish. Only if it overlaps; else Finish does everything.
  void Begin(absl::Span<float> gradient, int64_t samples);
  // Elements from `first` on have their final values.
  void Ready(int64_t first);

  // Waits for the sum (Begin may not have been called: a worker without data), and applies it
  // unless nobody had samples. `samples_of_all`: the sum of n. `bytes`: what this rank sent for it.
  absl::Status Finish(absl::Span<float> gradient, int64_t samples, double* samples_of_all,
                      uint64_t* bytes);

  // Gradients are summed where a GPU has them, not from what Finish is given: `gradient` says where
  // they are, or, if it is told so, that there are zeros (no samples). Before the first Finish.
  using DeviceGradient = std::function<absl::StatusOr<float*>(bool zero)>;
  void SumOnDevice(std::unique_ptr<DeviceSum> sum) { device_sum_ = std::move(sum); }
  void set_device_gradient(DeviceGradient gradient) { device_gradient_ = std::move(gradient); }
  bool sums_on_device() const { return device_sum_ != nullptr; }

  // Sharded optimizer, all ranks: the slots of all blocks to rank 0, for a save.
  absl::Status GatherSlots();

  // Adds what each bucket took, on a lane of its own. Before the first Begin; null: nothing.
  void set_trace(Trace* trace) { trace_ = trace; }

  void Abort(absl::string_view why);
  // Any thread. What the group did is written by whoever uses it: within about a second if an
  // operation is waiting, else after the next one, or by the destructor.
  void RequestDump() { dump_requested_ = true; }
  // "allreduce #3: waits 2s for worker 1 ..." as of about a second ago, and that worker; or no text.
  Activity WaitingFor() const;

 private:
  absl::Status Reduce(Piece bucket);
  absl::Status ReduceBucket(Piece bucket);
  void MakeCodec();
  absl::Status SumByCodec();
  absl::Status SumAtOnce();
  void ShardOptimizer();
  absl::Status ReduceToOwners();
  absl::Status SendValuesRound();
  absl::Status ReduceSamples();
  absl::Status WaitFor(const absl::StatusOr<Work>& work);
  void Dump();
  absl::Status DumpIfNeeded(absl::Status status);
  void Loop();
  bool BucketIsReady() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllReduced() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  AbortableWatch* const watch_;
  const std::unique_ptr<Group> group_;  // of the reducing thread: loop_, or the caller's
  DenseParameters& dense_;
  const Options options_;
  const bool samples_apart_;  // n is no element of the gradient
  const std::vector<Piece> buckets_;
  std::unique_ptr<GradientCodec> codec_;     // null: none, or wrapped in feedback_
  std::unique_ptr<ErrorFeedback> feedback_;  // null: none
  std::vector<float> sent_by_codec_;
  std::vector<int64_t> shares_;  // sharded optimizer: floats of each rank's blocks
  float to_wire_ = 1;            // 16-bit wires: factor
  std::vector<uint8_t> narrow_;  // the gradient as it travels
  float samples_ = 0;            // n, then its sum: 16-bit wires
  absl::Span<float> gradient_;
  Trace* trace_ = nullptr;
  uint64_t told_ = 0;  // bytes sent, as of the end of the last step that Finish has reported
  std::atomic<bool> dump_requested_{false};
  std::unique_ptr<DeviceSum> device_sum_;  // uses group_
  DeviceGradient device_gradient_;

  mutable absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t ready_from_ ABSL_GUARDED_BY(mutex_) = 0;  // elements from here on are ready
  size_t reduced_ ABSL_GUARDED_BY(mutex_) = 0;      // buckets
  uint64_t sent_ ABSL_GUARDED_BY(mutex_) = 0;       // by the group, as of the last bucket
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  Activity waiting_ ABSL_GUARDED_BY(mutex_);
  std::thread loop_;  // if it overlaps
};

}  // namespace tandem

#endif  // TANDEM_WORKER_DENSE_SYNCHRONISER_H_
