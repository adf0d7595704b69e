// The common work of replicas of the dense parameters after a step: the order of collectives that
// all workers run, and the change of the parameters afterwards. A pure state machine that names the
// next request. Its owner runs the request over links and calls OnDone. The owner is a group of
// threads in a worker (dense_reducer.h), or an engine under a virtual clock in the simulator.
//
// A step: BeforeStep, then the model computes; Begin; Ready when elements of the gradient get their
// final values; Close when nothing is computed any more. Between these calls, whenever no request
// is running,
//
//   while (const DenseReduction::Request* request = reduction.Next()) {
//     ... run it ...
//     reduction.OnDone();
//     ... look at reduction.failure() ...
//   }
//
// until over(). Parameters change only after Close. All workers get the same requests in the same
// order, also a worker without samples, which takes every step with an empty gradient. A step may
// have no request at all (local_steps.h); then this worker learns nothing about the others in the
// step.
//
// To add one: a file beside allreduce_gradients.cc, and its row in dense_synchronisers.cc.
//
// Thread safety: none; one thread at a time.
#ifndef TANDEM_WORKER_DENSE_DENSE_REDUCTION_H_
#define TANDEM_WORKER_DENSE_DENSE_REDUCTION_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"
#include "collectives/types.h"
#include "job/job.h"
#include "worker/dense/dense_parameters.h"

namespace tandem::worker {

class DenseReduction {
 public:
  struct Request {
    enum class By {
      kGroup,   // a collective
      kCodec,   // the sum of `count` floats at `output`, in place, by the job's codec
      kDevice,  // like kCodec, for gradients in the memory of a GPU
    };
    By by = By::kGroup;
    // Primitives that reduce, such as all-reduce, compute sums.
    collectives::Primitive primitive = collectives::Primitive::kAllReduce;
    collectives::DataType type = collectives::DataType::kF32;
    int64_t count = 0;                 // elements; v-variants: unused
    absl::Span<const int64_t> counts;  // v-variants: by rank
    double samples = 0;                // of the step; kCodec: of all workers; kDevice: of this one
    const void* input = nullptr;       // valid until OnDone
    void* output = nullptr;
    absl::optional<collectives::Algorithm> algorithm;  // none: the owner chooses
    absl::optional<collectives::Piece> bucket;         // part of the gradient, if it is one
  };

  // A step of this worker.
  struct Step {
    int64_t number = 0;
    int64_t samples = 0;
    // The last step of an epoch, if others than the reduction report its end (SyncsAtEnd).
    bool last = false;
    bool skipped = false;      // no samples, because the program has skipped its batch
    int64_t sample_clock = 0;  // the job's progress at the step (policies::Update)
  };
  // The value of samples_of_all() for a step in which workers have exchanged nothing.
  static constexpr double kUnknown = -1;

  virtual ~DenseReduction() = default;

  // A model is about to compute a step, so the parameters must be those that this worker trains.
  virtual void BeforeStep() {}
  // Begins a step. `gradient` is padded as in DenseParameters, plus one element, and stays valid
  // until the step is over.
  virtual void Begin(absl::Span<float> gradient, const Step& step) = 0;
  // Elements of the gradient from `first` to the end have their final values.
  virtual void Ready(int64_t first) = 0;
  // The whole gradient is final, and nobody reads the parameters any more, so they may change.
  virtual void Close() = 0;

  // For a checkpoint, between steps: begins the requests that give rank 0 the state that only other
  // ranks have.
  virtual void BeginGather() = 0;
  // The state for a checkpoint that only this worker has, between steps; empty: no state. SetState
  // restores it before the first step; DATA_LOSS if it is not the state of such a worker.
  virtual std::string State() { return ""; }
  virtual absl::Status SetState(absl::string_view /*state*/) { return absl::OkStatus(); }

  // The request to run now; valid until OnDone. Null while a request is running, or until more of
  // the gradient is ready or Close is called.
  virtual const Request* Next() = 0;
  virtual void OnDone() = 0;
  // Not OK after OnDone: the request has found an error that must end the job.
  virtual absl::Status failure() const { return absl::OkStatus(); }

  // The next request needs the elements from this one on to be ready; 0 or less: all elements.
  virtual int64_t needs_from() const = 0;
  // No request follows before Close.
  virtual bool waits_for_close() const = 0;
  virtual bool over() const = 0;  // the step, or the gather that BeginGather began
  // Sum of n over the workers, in this step and those since the last exchange; known when the step
  // is over. Otherwise kUnknown.
  virtual double samples_of_all() const = 0;
  // If samples_of_all() is 0: the number of steps, including this one, that nobody had samples for.
  virtual int64_t empty_steps() const { return 1; }
};

// Makes the reduction that the job asks for; null if its dense parameters are not replicas.
// `bucket_bytes`: how much of the gradient is reduced at a time; 0: all of it. `dense` outlives the
// reduction.
std::unique_ptr<DenseReduction> NewDenseReduction(const job::ResolvedJob& plan, int rank,
                                                  int64_t bucket_bytes, DenseParameters& dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_REDUCTION_H_
