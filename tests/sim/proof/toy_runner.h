// Runs the tasks of one worker with the toy model: fills batches, computes gradients, and shows
// every pulled row to the judge.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_TOY_RUNNER_H_
#define TANDEM_TESTS_SIM_PROOF_TOY_RUNNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "job/job.h"
#include "tests/sim/proof/judge.h"
#include "tests/sim/proof/toy_model.h"
#include "worker/task_runner.h"

namespace tandem {

class ToyRunner final : public worker::TaskRunner {
 public:
  // References must outlive the runner.
  static absl::StatusOr<std::unique_ptr<worker::TaskRunner>> New(const job::ResolvedJob& plan,
                                                                 int rank, const ToyModel& model,
                                                                 bool evaluate, Judge& judge);

  // The AUC that evaluation `evaluation` (from 1) of a model with this seed reports, whatever it
  // has learned.
  static double AucOf(uint64_t seed, int evaluation);

  worker::DenseParameters& dense() override { return *dense_; }
  bool has_test_data() const override { return evaluate_; }
  int64_t EstimatedRows() const override { return 0; }

  absl::Status StartAt(const TrainPosition& start) override;
  absl::Status Fetch(worker::StepSlot* slot) override;
  absl::Status FetchTest(worker::StepSlot* slot, bool first, worker::HeldOut rows) override;
  absl::Status Compute(worker::StepSlot* slot) override;
  absl::Status Score(worker::StepSlot* slot) override;
  absl::Status FillShare(EvaluationShare* share, Buffer* payload) override;
  absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>& shares,
                                          const std::map<int, Buffer>& payloads) override;

 private:
  ToyRunner(const job::ResolvedJob& plan, int rank, const ToyModel& model, bool evaluate,
            Judge& judge, std::unique_ptr<worker::DenseParameters> dense)
      : plan_(plan),
        rank_(rank),
        model_(model),
        evaluate_(evaluate),
        judge_(judge),
        dense_(std::move(dense)) {}
  void ComputeTable(const data::SparseInput& input, int64_t sum, size_t i, worker::StepSlot* slot);
  void ComputeDense(int64_t sum, worker::StepSlot* slot);
  float Norm(uint32_t table, int64_t step, int64_t own, int64_t sum) const;
  // False for some batches of an epoch: a reader does not always know its place (ReadPlace).
  bool HasPlace(int64_t batch) const;
  absl::Status CheckPlace(const TrainPosition& start) const;

  const job::ResolvedJob& plan_;
  const int rank_;
  const ToyModel& model_;
  const bool evaluate_;
  Judge& judge_;
  const std::unique_ptr<worker::DenseParameters> dense_;
  HeapBufferSource buffers_;
  int64_t epoch_ = -1, test_index_ = 0;
  int64_t batches_ = 0;  // of this epoch
  // (epoch, the step's number in it). Workers that take steps together have their batches of the
  // same number in it.
  std::map<const worker::StepSlot*, std::pair<int64_t, int64_t>> batch_in_slot_;
  int evaluations_ = 0;       // rank 0: merged
  int first_evaluation_ = 0;  // of this attempt, if each epoch has one
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_TOY_RUNNER_H_
