// The tasks that the trainer gives to others: one type per task, with the data that the task needs.
// A shell runs tasks on its own threads; the simulator runs them under its virtual clock. Either
// one hands a task back when the task is done.
//
// Thread safety: while a task runs, the objects it points to belong to the thread that runs it.
#ifndef TANDEM_WORKER_TRAINER_TASK_H_
#define TANDEM_WORKER_TRAINER_TASK_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "client/client_core.h"
#include "data/batch.h"
#include "proto/outgoing.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// The memory of one step. Rows stay in the frames that brought them, and gradients are written into
// the frames that will carry them.
struct StepSlot {
  int64_t step = -1;
  int64_t epoch = 0;
  int64_t sample_clock = 0;  // the job's progress when the step starts (policies::Update)
  data::Batch batch;
  // Where reading continues after the batch; empty: the reader does not know.
  absl::optional<ReadPlace> place;
  std::vector<client::PulledRows> rows;  // by sparse input; cleared once the rows are pooled
  // by sparse input: the place of each key's gradient
  std::vector<absl::Span<float* const>> gradients;
  // by policy group; the memory of `gradients`
  std::vector<client::ClientCore::PreparedPush> pushes;
  client::PulledRows dense_rows;      // dense parameters on servers, by block
  std::vector<float> dense;           // dense_rows in one piece (padded); empty for replicas
  std::vector<float> dense_gradient;  // padded, plus one element for n; empty: skipped steps
  double loss_sum = 0;
  // The program gives no gradient of the batch: the step counts as one without samples, except that
  // it does not look like the end of the data.
  bool skipped = false;
  bool has_loss = true;          // false: the program has not given a loss
  bool begins_interval = false;  // the rows of `interval_auc` begin with this step
  double interval_auc = 0;       // AUC of the rows trained in the interval so far; 0 = unknown
  absl::Duration fetched;        // how long the reading of the batch took
  absl::Duration computed;       // how long computing took, without `slept`
  absl::Duration slept;          // sleep on purpose, as the job's fault_injection.slow_workers says
  absl::Duration joined;         // how long joining the other workers took, before the first step
  // The last step of an epoch that ends with a barrier (DenseSynchroniser::SyncsAtEnd).
  bool last = false;
  // Results of the synchronisation, as DenseReduction defines them: the sum of n over the workers,
  // or that the sum is unknown; if the sum is 0, how many steps nobody had samples for; and the
  // cost of the synchronisation.
  double samples_of_all = 0;
  int64_t empty_steps = 1;
  uint64_t bytes_sent = 0;
  std::vector<int64_t> missed;  // QuorumSums::Finish

  int64_t samples() const { return skipped ? 0 : batch.samples; }  // that its gradient is over
};

// Fill slot->batch with the next batch of slot->epoch; samples 0 = the data has run out.
struct FetchTask {
  StepSlot* slot = nullptr;
};
// Rows -> gradients, dense_gradient, loss_sum (sums over samples).
struct ComputeTask {
  StepSlot* slot = nullptr;
};
// Replicas of dense parameters: run the common work of all workers after a step
// (dense_reduction.h). Sets slot->samples_of_all and bytes_sent.
struct SynchroniseTask {
  StepSlot* slot = nullptr;
};
// With a quorum (quorum_sums.h): this worker has no data left in this epoch. With `all`: no worker
// has data left, and the task sums the remaining gradients; then all workers stand at `step`, and
// `missed` and `bytes_sent` are as in a slot.
struct EpochEndTask {
  bool all = false;
  int64_t step = 0;
  std::vector<int64_t>* missed = nullptr;
  uint64_t* bytes_sent = nullptr;
};
// Rows that nobody trains on.
enum class HeldOut { kTest, kValidation };
// Fill slot->batch with the next batch of held-out rows; `first`: start from the beginning.
struct FetchTestTask {
  StepSlot* slot = nullptr;
  bool first = false;
  HeldOut rows = HeldOut::kTest;
};
// Score slot->batch and add the result to the sums of this evaluation.
struct ScoreTask {
  StepSlot* slot = nullptr;
};
// Write this worker's share of the evaluation and reset its sums.
struct FillShareTask {
  EvaluationShare* share = nullptr;
  Buffer* payload = nullptr;
};
// Rank 0: merge shares and payloads of all ranks into *json.
struct MergeSharesTask {
  const std::map<int, EvaluationShare>* shares = nullptr;  // by rank
  const std::map<int, Buffer>* payloads = nullptr;
  std::string* json = nullptr;
};

// A worker may have two checkpoints in progress: a requested one, and one of its own (after a best
// evaluation, or at the end of the job).
enum class CheckpointId { kRequested, kBest, kFinal };

// Replicas, every rank: send rank 0 the dense state that only other ranks hold.
struct GatherDenseTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  std::vector<int64_t>* missed = nullptr;  // as in a slot
  uint64_t* bytes_sent = nullptr;          // as in a slot
};
// Every rank of a job with a codec, with local steps, or with a module on each worker: copy the
// state that only this worker holds. `state`: the codec's memory, or the worker's own replica.
// `program`: the state of the program or module. Runs on the compute thread, so no step changes the
// state meanwhile.
struct CopyWorkerTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  int64_t step = 0;   // checkpoint contains the steps below
  int64_t epoch = 0;  // the epoch of this worker
  std::string* state = nullptr;
  std::string* program = nullptr;
};
// Rank 0: write the dense file into this folder.
struct WriteDenseTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  const std::string* directory = nullptr;
  const std::string* bytes = nullptr;
};
// Write the states of CopyWorkerTask into the folder. An empty state needs no file.
struct WriteWorkerTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  const std::string* directory = nullptr;
  const std::string* state = nullptr;
  const std::string* program = nullptr;
};
// Rank 0: all files of the checkpoint are written, so write its manifest and make it the latest.
struct CommitCheckpointTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  const std::string* directory = nullptr;
  int64_t step = 0;                     // checkpoint contains the steps below
  const std::string* record = nullptr;  // RunRecord at the mark
  // After an error, as in AbandonCheckpointTask.
  bool makes_room = false;
  int64_t* free_bytes = nullptr;
};
// Rank 0: some node could not write its part, so remove the other parts.
struct AbandonCheckpointTask {
  CheckpointId checkpoint = CheckpointId::kFinal;
  const std::string* directory = nullptr;
  // A disk is full, and the checkpoint is tried again: remove the checkpoints that its commit would
  // remove, too (server::MakeRoom).
  bool makes_room = false;
  int64_t* free_bytes = nullptr;  // receives the room on the disk afterwards
};

using TrainerTask =
    std::variant<FetchTask, ComputeTask, SynchroniseTask, EpochEndTask, FetchTestTask, ScoreTask,
                 FillShareTask, MergeSharesTask, GatherDenseTask, CopyWorkerTask, WriteDenseTask,
                 WriteWorkerTask, CommitCheckpointTask, AbandonCheckpointTask>;

// Combines lambdas, one per task type, into one visitor for std::visit.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// The numbers of one step, for tests and event logs.
struct StepTrace {
  int64_t step = 0;
  int64_t samples = 0;
  double loss_sum = 0;
  int64_t clock_gap = 0;
  int64_t in_flight = 0;
};

// One pull or push of a step, from the request to the last answer; for traces.
struct TransferTrace {
  bool push = false;
  int64_t step = 0;
  absl::Time start, end;
};

// The output of the trainer: frames to send, tasks to run, and records for logs. The caller owns
// the object and reuses its memory.
struct TrainerEffects {
  std::vector<Outgoing> out;
  std::vector<TransferTrace> transfers;
  std::vector<TrainerTask> tasks;
  std::vector<StepTrace> steps;
  std::vector<std::string> log;
  void Clear() {
    out.clear();
    tasks.clear();
    steps.clear();
    transfers.clear();
    log.clear();
  }
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TASK_H_
