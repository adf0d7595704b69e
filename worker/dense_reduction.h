// What replicas of the dense parameters do together after a step: which collectives all workers run,
// in which order, and what happens to the parameters then. A pure state machine: it says what is to
// be run, whoever has links runs it (a group of threads in a worker, dense_reducer.h; an engine
// under a virtual clock in the simulator) and says when it is done.
//
// A step: BeforeStep, then the model computes; Begin; Ready as elements of the gradient get their
// final values; Close once nothing is computed any more; and between them, whenever nothing is under
// way,
//
//   while (const DenseReduction::Request* request = reduction.Next()) {
//     ... run it ...
//     reduction.OnDone();
//     ... look at reduction.failure() ...
//   }
//
// until over(). Parameters change only after Close. All workers get the same requests in the same
// order, also a worker without samples: it takes every step, if only in name. A step may have no
// request at all (local_steps.h): then this worker learns nothing of the others in it.
//
// To add one: a file beside allreduce_gradients.cc, and its row in dense_synchronisers.cc.
//
// Thread safety: none; one thread at a time.
#ifndef TANDEM_WORKER_DENSE_REDUCTION_H_
#define TANDEM_WORKER_DENSE_REDUCTION_H_

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
#include "worker/dense_parameters.h"

namespace tandem::worker {

class DenseReduction {
 public:
  struct Request {
    enum class By {
      kGroup,   // a collective
      kCodec,   // the sum of `count` floats at `output`, in place, by the job's codec
      kDevice,  // the same, of gradients where a GPU has them
    };
    By by = By::kGroup;
    // All-reduce and its like are sums.
    collectives::Primitive primitive = collectives::Primitive::kAllReduce;
    collectives::DataType type = collectives::DataType::kF32;
    int64_t count = 0;                 // elements; v-variants: unused
    absl::Span<const int64_t> counts;  // v-variants: by rank
    double samples = 0;                // kCodec: of all workers in this step
    const void* input = nullptr;       // until OnDone
    void* output = nullptr;
    absl::optional<collectives::Algorithm> algorithm;  // none: whoever runs it chooses
    absl::optional<collectives::Piece> bucket;         // of the gradient, if it is one
  };

  // A step of this worker.
  struct Step {
    int64_t number = 0;
    int64_t samples = 0;
    bool last = false;  // of an epoch whose end is told by others than this (MeetsAtEnd)
  };
  // samples_of_all() of a step in which workers have told each other nothing.
  static constexpr double kUnknown = -1;

  virtual ~DenseReduction() = default;

  // A model is about to compute a step: the parameters are those that this worker trains.
  virtual void BeforeStep() {}
  // A step begins. `gradient` is padded as in DenseParameters, plus one element, and stays until the
  // step is over.
  virtual void Begin(absl::Span<float> gradient, const Step& step) = 0;
  // Elements of the gradient from `first` on have their final values.
  virtual void Ready(int64_t first) = 0;
  // All of it has, and the parameters are not read any more: they may change.
  virtual void Close() = 0;

  // For a save, between steps: rank 0 gets what only others have. Its requests follow.
  virtual void BeginGather() = 0;
  // What this worker alone knows, for a save, between steps; empty: nothing. And back, before the
  // first step: DATA_LOSS if it is none of such a worker.
  virtual std::string State() { return ""; }
  virtual absl::Status SetState(absl::string_view /*state*/) { return absl::OkStatus(); }

  // What is to be run now; valid until OnDone. Null while one is under way, or while none can be run
  // before more of the gradient is ready or Close.
  virtual const Request* Next() = 0;
  virtual void OnDone() = 0;
  // Not OK after OnDone: what the request has shown must end the job.
  virtual absl::Status failure() const { return absl::OkStatus(); }

  // The next request needs elements from here on to be ready; 0 or less: all of them.
  virtual int64_t needs_from() const = 0;
  // Nothing more is run before Close.
  virtual bool waits_for_close() const = 0;
  virtual bool over() const = 0;  // the step, or what BeginGather began
  // Sum of n over the workers, in this step and those since they last met; known when the step is
  // over. Or kUnknown.
  virtual double samples_of_all() const = 0;
  // If that is 0: how many steps, this one included, nobody had samples for.
  virtual int64_t empty_steps() const { return 1; }
};

// The one that the job asks for; null if its dense parameters are not replicas. `bucket_bytes`: of
// the gradient, how much is reduced at a time, or 0: all of it. `dense` outlives it.
std::unique_ptr<DenseReduction> NewDenseReduction(const job::JobPlan& plan, int rank,
                                                  int64_t bucket_bytes, DenseParameters& dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_REDUCTION_H_
