// Keeps the dense parameters of all workers together: the interface through which the trainer uses
// them. An implementation says what must happen before training, which dense rows a step pulls and
// pushes, what follows a step's compute, and how evaluations and checkpoints read the parameters.
//
//   on servers  blocks are rows of the table "dense", under a policy like any table: pulled with a
//               step's rows, pushed with its gradients (dense_on_servers.h)
//   replicas    every worker has all blocks; after a step all workers run a common task, such as
//               the sum of gradients (dense_replicas.h, dense_reduction.h)
//
// To add one: a file, and its row in dense_synchronisers.cc.
//
// Thread safety: none needed; the trainer's thread.
#ifndef TANDEM_WORKER_DENSE_DENSE_SYNCHRONISER_H_
#define TANDEM_WORKER_DENSE_DENSE_SYNCHRONISER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/dense/dense_parameters.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

// The state of a synchroniser for one checkpoint.
struct DenseCheckpoint {
  CheckpointId id = CheckpointId::kFinal;
  bool asked = false, collected = false;
  std::vector<int64_t> missed;  // GatherDenseTask
  uint64_t bytes_sent = 0;      // as in GatherDenseTask
};

class DenseSynchroniser {
 public:
  virtual ~DenseSynchroniser() = default;

  // Called before training, again and again until it returns true: then the initial values are
  // where steps read them.
  virtual bool Prepare(absl::Time now) = 0;

  // The blocks that a step with samples pulls and pushes in `group`; empty: none.
  virtual absl::Span<const uint64_t> BlocksIn(uint32_t group) const = 0;
  // All rows of a step have arrived.
  virtual void OnRows(StepSlot* slot) = 0;
  // Writes the gradient of a step into the frames of its push, if the dense blocks are in `group`.
  virtual void WriteGradient(uint32_t group, StepSlot* slot) = 0;

  // A step is computed (or has no samples) and pushed; or the step is the last of those that this
  // worker skips, and dense_gradient is empty. True if the next step may begin only when the
  // synchroniser's task has ended.
  virtual bool AfterCompute(StepSlot* slot, TrainerEffects* effects) = 0;
  // Whether slot->samples_of_all shows the end of an epoch, at least in those steps in which the
  // sum is known. Otherwise the answers of the policies show it.
  virtual bool TellsSamples() const = 0;
  // Whether an epoch whose end the policies have reported has one more step, with a sync round.
  virtual bool SyncsAtEnd() const { return false; }
  // Whether the synchroniser needs an EpochEndTask: when this worker has no data left in an epoch,
  // and when no worker has.
  virtual bool EndsEpochs() const { return false; }
  // Whether each worker has a state of its own for a checkpoint (CopyWorkerTask).
  virtual bool HasOwnState() const { return false; }

  // An evaluation begins, so the worker's DenseParameters must get the latest values. Returns the
  // pull that brings them, or 0 if they are there.
  virtual uint64_t ReadLatest(absl::Time now) = 0;

  // For a checkpoint, on every rank once it is marked. Called again and again until it returns
  // true: then rank 0 can take the file.
  virtual bool CollectForCheckpoint(DenseCheckpoint* checkpoint, TrainerEffects* effects) = 0;
  // Rank 0, after CollectForCheckpoint: the bytes of the dense file. Empty: servers write the
  // parameters, like any rows.
  virtual std::string DenseFile() const = 0;
};

// Makes the synchroniser that the job asks for. `context` and `dense` outlive it.
std::unique_ptr<DenseSynchroniser> NewDenseSynchroniser(TrainerContext& context,
                                                        DenseParameters& dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_SYNCHRONISER_H_
