// A task runner that hands its tasks to the program that drives the worker (attached_worker.h), and
// waits for the answers. The runner keeps the parts that the program does not need to see: the
// dense parameters with their optimizer, and the sums of an evaluation.
//
// Thread safety: as TaskRunner.
#ifndef TANDEM_WORKER_ATTACHED_RUNNER_H_
#define TANDEM_WORKER_ATTACHED_RUNNER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/metrics.h"
#include "job/job.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "worker/dense/dense_parameters.h"
#include "worker/request_queue.h"
#include "worker/task_runner.h"

namespace tandem::worker {

class AttachedRunner final : public TaskRunner {
 public:
  // Makes dense parameters with `values`, or with the values of the checkpoint `saved` (null:
  // none). `keeps_state`: the program answers kState. The plan and the queue outlive the runner.
  static absl::StatusOr<std::unique_ptr<AttachedRunner>> New(
      const job::ResolvedJob& plan, std::shared_ptr<const server::CheckpointReader> saved,
      bool keeps_state, std::vector<server::CheckpointParameter> parameters,
      absl::Span<const float> values, RequestQueue& requests);

  DenseParameters& dense() override { return *dense_; }
  // The program may read the values even after the runner is gone.
  std::shared_ptr<DenseParameters> shared_dense() const { return dense_; }
  // The program may have held-out rows. An evaluation without rows of any worker has an empty
  // result.
  bool has_test_data() const override { return true; }
  int64_t EstimatedRows() const override { return 0; }
  std::vector<server::CheckpointParameter> Parameters() const override { return parameters_; }

  // `epoch`: the epoch in which the run resumes; -1: the run starts at its beginning. `states`: by
  // rank, the state that its program gave to the checkpoint. A run that only starts from a
  // checkpoint (--init-from) has at most one state, that of rank 0.
  struct Resumed {
    int64_t epoch = -1;
    std::vector<std::string> states;
  };
  const Resumed& resumed() const { return resumed_; }
  absl::Status StartAt(const TrainPosition& start) override;
  absl::StatusOr<std::string> ProgramState(int64_t step, int64_t epoch, bool last) override;

  absl::Status Fetch(StepSlot* slot) override;
  absl::Status FetchTest(StepSlot* slot, bool first, HeldOut rows) override;
  absl::Status Compute(StepSlot* slot) override;
  bool TakeBack(int64_t step) override { return requests_.TakeBack(step); }
  absl::Status Score(StepSlot* slot) override;
  absl::Status FillShare(EvaluationShare* share, Buffer* payload) override;
  absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                          const std::map<int, Buffer>& payloads) override;
  void OnSynchronised() override { requests_.StepDone(); }

  // On the program's thread, while kScore is requested: adds the scores of the batch.
  void AddScores(const data::Batch& batch, absl::Span<const float> logits);
  // On the program's thread, while kTestBatch is requested: values that the programs have reported
  // together. They belong to the evaluation.
  void AddReported(const std::map<std::string, double>& values) {
    for (const auto& [name, value] : values) reported_[name] = value;
  }

 private:
  AttachedRunner(const job::ResolvedJob& plan,
                 std::shared_ptr<const server::CheckpointReader> saved, bool keeps_state,
                 std::vector<server::CheckpointParameter> parameters, RequestQueue& requests)
      : plan_(plan),
        saved_(std::move(saved)),
        keeps_state_(keeps_state),
        parameters_(std::move(parameters)),
        requests_(requests) {}

  const job::ResolvedJob& plan_;
  const std::shared_ptr<const server::CheckpointReader> saved_;  // null: none
  const bool keeps_state_;
  const std::vector<server::CheckpointParameter> parameters_;
  RequestQueue& requests_;
  std::shared_ptr<DenseParameters> dense_;
  Resumed resumed_;
  absl::Status update_;  // the last answer of the program's optimizer
  HeapBufferSource buffers_;
  std::optional<data::EvaluationPart> evaluation_{std::in_place};
  std::map<std::string, double> reported_;  // of this evaluation
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ATTACHED_RUNNER_H_
