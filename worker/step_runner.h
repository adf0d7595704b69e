// What the trainer's tasks do to real data: batches from files, rows to gradients through the
// model, evaluation sums, files of the dense part. No thread of its own.
//
// Thread safety: Fetch and FetchTest may run on one thread while the others run on another; each by
// one thread at a time.
#ifndef TANDEM_WORKER_STEP_RUNNER_H_
#define TANDEM_WORKER_STEP_RUNNER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/batch_source.h"
#include "data/metrics.h"
#include "job/job.h"
#include "models/model.h"
#include "server/manifest.h"
#include "worker/dense_parameters.h"
#include "worker/dense_synchroniser.h"
#include "worker/trainer_core.h"

namespace tandem {

class StepRunner {
 public:
  // Opens this rank's share of the data and makes the model and the dense parameters, with first
  // values or those saved under `init_from`. `run`: View.run, for the manifests of saves.
  static absl::StatusOr<std::unique_ptr<StepRunner>> New(const JobPlan& plan, int rank,
                                                         uint64_t run,
                                                         const std::string& init_from);

  // For kSynchronise, and told of gradients as they become ready. None: dense parameters live on
  // servers.
  void set_synchroniser(DenseSynchroniser* synchroniser);

  absl::Status Run(const TrainerTask& task);

  DenseParameters& dense() { return *dense_; }
  bool has_test_data() const { return test_ != nullptr; }
  int64_t EstimatedRows() const { return train_->EstimatedRows(); }

 private:
  StepRunner(const JobPlan& plan, uint64_t run) : plan_(plan), run_(run) {}
  absl::Status Init(int rank, const std::string& init_from);

  absl::Status Fetch(StepSlot* slot);
  absl::Status FetchTest(StepSlot* slot, bool first);
  absl::Status Compute(StepSlot* slot);
  absl::Status Synchronise(StepSlot* slot);
  absl::Status Forward(StepSlot* slot);
  void Pool(StepSlot* slot);
  void FillShare(EvaluationShare* share, Buffer* payload);
  absl::Status MergeShares(const TrainerTask& task);
  std::vector<SavedParameter> Parameters() const;
  absl::Span<const float> ParametersOf(const StepSlot& slot) const;

  const JobPlan& plan_;
  const uint64_t run_;
  std::unique_ptr<BatchSource> train_, test_;
  int64_t epoch_ = -1;  // that `train_` was started for
  std::unique_ptr<DenseModel> model_;
  std::unique_ptr<DenseParameters> dense_;
  DenseSynchroniser* synchroniser_ = nullptr;
  HeapBufferSource buffers_;
  RunningAuc recent_auc_;
  int64_t computed_ = 0;  // steps
  std::optional<EvaluationPart> evaluation_{std::in_place};
  // Reused by every step: by sparse input, [samples * fields, dim].
  std::vector<std::vector<float>> cells_, cell_gradients_;
  std::vector<PooledRows> cell_spans_;
  std::vector<absl::Span<float>> cell_gradient_spans_;
  std::vector<float> logits_;
};

}  // namespace tandem

#endif  // TANDEM_WORKER_STEP_RUNNER_H_
