// A compiled model over files: reads batches (data/), turns rows into gradients with a dense model
// (models/model.h), and sums evaluations. This class does not depend on LibTorch; its creator
// passes the model in.
//
// Thread safety: as TaskRunner. No thread of its own.
#ifndef TANDEM_WORKER_STEP_RUNNER_H_
#define TANDEM_WORKER_STEP_RUNNER_H_

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/batch_source.h"
#include "data/metrics.h"
#include "job/job.h"
#include "models/model.h"
#include "models/script_file.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "worker/dense/dense_parameters.h"
#include "worker/task_runner.h"

namespace tandem::worker {

class StepRunner final : public TaskRunner {
 public:
  using MakeModel = std::function<absl::StatusOr<std::unique_ptr<models::DenseModel>>(
      const job::ResolvedJob& plan, const models::ModelInputs& inputs)>;

  // Opens this rank's share of the data and makes the model and the dense parameters, with initial
  // values or with those of the checkpoint `saved` (null: none). `scores`: a file for the
  // logits of this rank's test rows, float32 in the order of the rows (empty: none). `shared`: the
  // reader that many workers of one process share (data/shared_reader.h), which outlives the
  // runner. Null: the runner has its own reader.
  static absl::StatusOr<std::unique_ptr<TaskRunner>> New(
      const job::ResolvedJob& plan, int rank, std::shared_ptr<const server::CheckpointReader> saved,
      const MakeModel& make_model, const std::string& scores = "",
      data::SharedReader* shared = nullptr);

  DenseParameters& dense() override { return *dense_; }
  bool has_test_data() const override { return test_ != nullptr || validation_ != nullptr; }
  int64_t EstimatedRows() const override { return train_ == nullptr ? 0 : train_->EstimatedRows(); }

  std::vector<server::CheckpointParameter> Parameters() const override;
  std::string ModuleContents() const override { return model_->Contents(); }
  absl::StatusOr<std::string> ProgramState(int64_t step, int64_t epoch, bool last) override;

  absl::Status StartAt(const TrainPosition& start) override;
  int64_t RowsReadAgain() const override { return read_again_; }
  absl::Status Fetch(StepSlot* slot) override;
  absl::Status FetchTest(StepSlot* slot, bool first, HeldOut rows) override;
  absl::Status Compute(StepSlot* slot) override;
  absl::Status Score(StepSlot* slot) override;
  absl::Status FillShare(EvaluationShare* share, Buffer* payload) override;
  absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                          const std::map<int, Buffer>& payloads) override;

  void set_gradient_ready(std::function<void(int64_t first)> ready) override;
  DeviceGradient LeaveGradientOnDevice() override;

 private:
  StepRunner(const job::ResolvedJob& plan, int rank,
             std::shared_ptr<const server::CheckpointReader> saved)
      : plan_(plan), rank_(rank), saved_(std::move(saved)) {}
  absl::Status Init(const MakeModel& make_model, data::SharedReader* shared);
  absl::StatusOr<models::ModuleState> CheckpointState(int rank) const;
  absl::Status CheckScores() const;
  absl::Status SkipToStart();
  void Pool(StepSlot* slot);
  uint64_t DrawSeed(int64_t step) const;
  absl::Span<const float> ParametersOf(const StepSlot& slot) const;

  const job::ResolvedJob& plan_;
  const int rank_;
  const std::shared_ptr<const server::CheckpointReader> saved_;  // null: none
  std::unique_ptr<data::BatchSource> train_;                     // null: the job only scores rows
  std::unique_ptr<data::BatchSource> test_, validation_;         // null: the job has no such rows
  int64_t epoch_ = -1;                  // epoch that `train_` was started for
  TrainPosition start_;                 // the resume position; 0 rows: start of the epoch
  std::atomic<int64_t> read_again_{0};  // rows read again so far, of start_.rows()
  std::unique_ptr<models::DenseModel> model_;
  std::unique_ptr<DenseParameters> dense_;
  HeapBufferSource buffers_;
  data::RunningAuc interval_auc_;
  int64_t interval_steps_ = 0;  // steps whose rows interval_auc_ contains
  std::optional<data::EvaluationPart> evaluation_{std::in_place};
  std::string scores_path_;  // empty: scores are not written
  std::ofstream scores_;
  // Reused by every step: by sparse input, [samples * fields, dim].
  std::vector<std::vector<float>> cells_, pooled_gradients_;
  std::vector<models::PooledRows> pooled_spans_;
  std::vector<absl::Span<float>> pooled_gradient_spans_;
  std::vector<float> logits_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_RUNNER_H_
