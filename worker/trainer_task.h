// What the trainer has others do: one type a task, with what it needs. A shell runs them on threads
// of its own, the simulator under its clock; either hands a task back when it is done.
//
// Thread safety: what a task points to belongs to whoever runs it, until it is handed back.
#ifndef TANDEM_WORKER_TRAINER_TASK_H_
#define TANDEM_WORKER_TRAINER_TASK_H_

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "client/client_core.h"
#include "data/batch.h"
#include "proto/outgoing.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

// One step's memory. Rows stay in the frames that brought them, and gradients are written into the
// frames that will carry them.
struct StepSlot {
  int64_t step = -1;
  int64_t epoch = 0;
  data::Batch batch;
  std::vector<client::PulledRows> rows;             // by sparse input; cleared by who has used them
  std::vector<absl::Span<float* const>> gradients;  // by sparse input: where that of each key goes
  std::vector<client::ClientCore::PreparedPush> pushes;  // by policy group; what `gradients` are in
  client::PulledRows dense_rows;                         // of dense parameters on servers, by block
  std::vector<float> dense;           // the same in one piece (padded); empty for replicas
  std::vector<float> dense_gradient;  // padded, plus one element for n; empty: steps are left out
  double loss_sum = 0;
  bool has_loss = true;          // false: the program has not said one
  bool begins_interval = false;  // the rows of `interval_auc` begin with this step
  double interval_auc = 0;       // of the rows trained in the interval so far; 0 = unknown
  absl::Duration fetched;        // how long the reading of the batch took
  absl::Duration computed;       // ... and computing it, without ...
  absl::Duration slept;          // ... what was slept on purpose, as the job's service_time says
  absl::Duration joined;         // how long joining the other workers took, before the first step
  bool last = false;  // of an epoch that ends with a meeting (DenseSynchroniser::MeetsAtEnd)
  // Once synchronised, as DenseReduction says: sum of n over the workers, or that it is unknown; how
  // many steps nobody had samples for, if it is 0; and what that took.
  double samples_of_all = 0;
  int64_t empty_steps = 1;
  uint64_t bytes_sent = 0;
  std::vector<int64_t> missed;  // QuorumSums::Finish
};

// Fill slot->batch with the next batch of slot->epoch; samples 0 = ran out.
struct FetchTask {
  StepSlot* slot = nullptr;
};
// Rows -> gradients, dense_gradient, loss_sum (sums over samples).
struct ComputeTask {
  StepSlot* slot = nullptr;
};
// Replicas of dense parameters: what all workers do together after a step (dense_reduction.h). Sets
// slot->samples_of_all and bytes_sent.
struct SynchroniseTask {
  StepSlot* slot = nullptr;
};
// With a quorum (quorum_sums.h): this worker has no data left in this epoch; or, if `all`, nobody has,
// and what is left of their gradients is summed. Then all stand at `step`; `missed` and `bytes_sent` are
// as in a slot.
struct EpochEndTask {
  bool all = false;
  int64_t step = 0;
  std::vector<int64_t>* missed = nullptr;
  uint64_t* bytes_sent = nullptr;
};
// Rows that nobody trains on.
enum class HeldOut { kTest, kValidation };
// Fill slot->batch with the next batch of these rows; `first`: from the start.
struct FetchTestTask {
  StepSlot* slot = nullptr;
  bool first = false;
  HeldOut rows = HeldOut::kTest;
};
// Score slot->batch, add to this evaluation's sums.
struct ScoreTask {
  StepSlot* slot = nullptr;
};
// This worker's share of the evaluation; its sums begin anew.
struct FillShareTask {
  EvaluationShare* share = nullptr;
  Buffer* payload = nullptr;
};
// Rank 0: shares and payloads of all ranks -> *json.
struct MergeSharesTask {
  const std::map<int, EvaluationShare>* shares = nullptr;  // by rank
  const std::map<int, Buffer>* payloads = nullptr;
  std::string* json = nullptr;
};

// A worker may have two saves under way: one that was asked for, and one of its own, which is that of
// a best evaluation or that at the end.
enum class SaveId { kRequested, kBest, kFinal };

// Replicas, every rank: rank 0 gets what only others have of the dense parameters' state.
struct GatherDenseTask {
  SaveId save = SaveId::kFinal;
  std::vector<int64_t>* missed = nullptr;  // as in a slot
  uint64_t* bytes_sent = nullptr;          // the same
};
// Rank 0: write the dense file into this folder.
struct WriteDenseTask {
  SaveId save = SaveId::kFinal;
  const std::string* directory = nullptr;
  const std::string* bytes = nullptr;
};
// Every rank of a job with a codec, with workers that step by themselves, or with a module of its own:
// write what only this worker knows into the folder: what the codec remembers, its own replica, and the
// state of the program or module.
struct WriteWorkerTask {
  SaveId save = SaveId::kFinal;
  const std::string* directory = nullptr;
  int64_t step = 0;   // steps below it are in the save
  int64_t epoch = 0;  // that this worker stands in
};
// Rank 0: all files of the save are there: write its manifest and make it the latest.
struct CommitSaveTask {
  SaveId save = SaveId::kFinal;
  const std::string* directory = nullptr;
  int64_t step = 0;                     // steps below it are in the save
  const std::string* record = nullptr;  // RunRecord of the moment
};
// Rank 0: somebody's part could not be written: remove the others.
struct AbandonSaveTask {
  SaveId save = SaveId::kFinal;
  const std::string* directory = nullptr;
};

using TrainerTask =
    std::variant<FetchTask, ComputeTask, SynchroniseTask, EpochEndTask, FetchTestTask, ScoreTask,
                 FillShareTask, MergeSharesTask, GatherDenseTask, WriteDenseTask, WriteWorkerTask,
                 CommitSaveTask, AbandonSaveTask>;

// For std::visit with a lambda a task.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

// What happened in a step, for tests and event logs.
struct StepTrace {
  int64_t step = 0;
  int64_t samples = 0;
  double loss_sum = 0;
  int64_t clock_gap = 0;
  int64_t in_flight = 0;
};

// A read or a push of a step, from request to the last answer; for traces.
struct TransferTrace {
  bool push = false;
  int64_t step = 0;
  absl::Time start, end;
};

// What the trainer wants done. The caller's; reused with its memory.
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
