// How the dense parameters of all workers are kept together, as the trainer sees it: what has to
// happen before training, which dense rows a step reads and pushes, what follows a step's compute,
// and how evaluations and saves get at the parameters.
//
//   on servers  blocks are rows of the table "dense", under a policy like any table: read with a
//               step's rows, pushed with its gradients (dense_on_servers.h)
//   replicas    every worker has them all; after a step all workers do something together, which
//               is a task: sum gradients, say (dense_replicas.h, dense_reduction.h)
//
// To add one: a file, and its row in dense_synchronisers.cc.
//
// Thread safety: none needed; the trainer's thread.
#ifndef TANDEM_WORKER_DENSE_SYNCHRONISER_H_
#define TANDEM_WORKER_DENSE_SYNCHRONISER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/dense_parameters.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

// What a synchroniser remembers of one save.
struct DenseSave {
  SaveId id = SaveId::kFinal;
  bool asked = false, collected = false;
  uint64_t read = 0;            // under way; its owner says when it has been answered
  std::vector<float> rows;      // blocks with slots, from servers
  std::vector<int64_t> missed;  // GatherDenseTask
  uint64_t bytes_sent = 0;      // the same
};

class DenseSynchroniser {
 public:
  virtual ~DenseSynchroniser() = default;

  // Before training; called again and again until it is true: the first values are where steps read
  // them.
  virtual bool Prepare(absl::Time now) = 0;

  // The blocks that a step with samples reads and pushes in `group`; empty: none.
  virtual absl::Span<const uint64_t> BlocksIn(uint32_t group) const = 0;
  // All rows of a step have arrived.
  virtual void OnRows(StepSlot* slot) = 0;
  // The gradient of a step goes into the frames of its push, where the dense blocks are in `group`.
  virtual void WriteGradient(uint32_t group, StepSlot* slot) = 0;

  // A step is computed (or has no samples) and pushed; or it is the last of those that this worker leaves
  // out, and dense_gradient is empty. True if its task has to end before the next step begins.
  virtual bool AfterCompute(StepSlot* slot, TrainerEffects* effects) = 0;
  // Whether slot->samples_of_all says that an epoch is over, in each step or at least in those in which
  // it is known; otherwise that is for the policies' answers to say.
  virtual bool TellsSamples() const = 0;
  // Whether an epoch whose end the policies have told has one more step, in which workers meet.
  virtual bool MeetsAtEnd() const { return false; }
  // Whether it is told when this worker has no data left in an epoch, and when nobody has (EpochEndTask).
  virtual bool EndsEpochs() const { return false; }
  // Whether each worker has a state of its own for a save (WriteWorkerTask).
  virtual bool HasOwnState() const { return false; }

  // An evaluation begins: the latest values are to be in the worker's DenseParameters. Returns the
  // read that brings them, or 0 if they are there.
  virtual uint64_t ReadLatest(absl::Time now) = 0;

  // For a save, on every rank once all have met; called again and again until it is true: rank 0 can
  // write the file.
  virtual bool CollectForSave(absl::Time now, DenseSave* save, TrainerEffects* effects) = 0;
  // Rank 0, then: the bytes of the dense file.
  virtual absl::StatusOr<std::string> FileFor(const DenseSave& save) = 0;
};

// The one that the job asks for. `context` and `dense` outlive it.
std::unique_ptr<DenseSynchroniser> NewDenseSynchroniser(TrainerContext& context,
                                                        DenseParameters& dense);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_SYNCHRONISER_H_
