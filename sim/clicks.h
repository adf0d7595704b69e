// A click model of which everything is known, in the place of a model and its data: what is trained is of the
// kind that the labels are drawn from, so that its best logloss is known, and how far it is from there.
//
// A sample has one id in each field and some numbers. Each of the job's tables has `fields` fields of `ids` ids,
// which follow Zipf's law. With a row per id, and the dense parameters for a bias and a weight of each number,
//
//   logit = bias + <weights, numbers> + the first element of the row of each id
//         + for each two ids of a table the product <.,.> of the rest of their rows
//
// which is logistic regression where rows have one element, and a factorisation machine (Rendle 2010) where they
// have more. The planted rows, weights and bias are functions of the seed, as is each sample of (seed, rank,
// step): jobs that differ in policies, optimizers or times train on the same samples.
//
// Losses are expected ones over the label, given the sample: of a logit z where the planted probability is p,
// log(1 + e^z) - p z. So what a label happens to be does not blur them, and the least of them is the entropy of p.
// Each sample is new when it is met, so that these are losses on unseen samples.
//
// Thread safety: as worker::TaskRunner; const methods of ClickModel may run on any thread.
#ifndef TANDEM_SIM_CLICKS_H_
#define TANDEM_SIM_CLICKS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/batch.h"
#include "data/planted.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct ClickOptions {
  int fields = 8;      // of each table
  int64_t ids = 1000;  // of each field
  double skew = data::kPlantedExponent;
  int64_t dense = 1;  // parameters: the bias, and as many numbers less one
  int64_t steps = 0;  // of each worker, in an epoch
  uint64_t seed = 1;
};

// Means over samples as workers met them: of the first step of each worker, and of the last tenth of their steps.
struct ClickLosses {
  struct Mean {
    double loss = 0, least = 0;  // sums: expected logloss, and that of the planted model
    int64_t samples = 0;
    double Loss() const { return samples == 0 ? 0 : loss / static_cast<double>(samples); }
    double Least() const { return samples == 0 ? 0 : least / static_cast<double>(samples); }
    double Above() const { return Loss() - Least(); }
  };
  Mean first, last;
  // It ends further above the least than it began.
  bool diverged() const { return !(last.Above() <= first.Above()); }
};

class ClickModel {
 public:
  // `plan` outlives it.
  ClickModel(const job::JobPlan& plan, const ClickOptions& options);

  const ClickOptions& options() const { return options_; }
  // The samples of a worker's step with their labels; truth[s]: the logit by which the label was drawn.
  void FillBatch(int rank, int64_t step, data::Batch* batch, std::vector<double>* truth) const;

  // The logit of each sample, to which the dense part and all inputs add theirs; `rows` by key of the input.
  static void AddDense(const data::Batch& batch, absl::Span<const float> dense,
                       std::vector<double>* logits);
  static void AddRows(const data::SparseInput& input, size_t dim,
                      absl::Span<const float* const> rows, std::vector<double>* logits);
  // Writes gradient sums, where `errors` are the derivatives of the loss by the logits.
  static void DenseGradient(const data::Batch& batch, absl::Span<const double> errors,
                            absl::Span<float> gradient);
  static void RowGradients(const data::SparseInput& input, size_t dim,
                           absl::Span<const double> errors, absl::Span<const float* const> rows,
                           absl::Span<float* const> gradients);

  // The planted row of a key, `dim` floats, and dense parameters.
  void Planted(uint32_t table, uint64_t key, absl::Span<float> row) const;
  const std::vector<float>& planted_dense() const { return dense_; }

 private:
  struct Table {
    uint32_t id = 0;
    size_t dim = 0;
  };
  const ClickOptions options_;
  const int64_t batch_;
  const data::AliasTable draw_;
  std::vector<Table> tables_;
  std::vector<float> dense_;
  double single_ = 0,
         factor_ = 0;  // deviations of the first element of a row, and of each other one
};

class ClickRunner final : public worker::TaskRunner {
 public:
  // `plan`, and `losses`, to which all workers add, outlive it.
  static absl::StatusOr<std::unique_ptr<worker::TaskRunner>> New(
      const job::JobPlan& plan, int rank, std::shared_ptr<const ClickModel> model,
      ClickLosses* losses);

  worker::DenseParameters& dense() override { return *dense_; }
  bool has_test_data() const override { return false; }
  int64_t EstimatedRows() const override {
    return model_->options().steps * plan_.job.train().batch();
  }
  absl::Status Fetch(worker::StepSlot* slot) override;
  absl::Status Compute(worker::StepSlot* slot) override;
  absl::Status FetchTest(worker::StepSlot*, bool, worker::HeldOut) override { return NoTest(); }
  absl::Status Score(worker::StepSlot*) override { return NoTest(); }
  absl::Status FillShare(EvaluationShare*, Buffer*) override { return NoTest(); }
  absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>&,
                                          const std::map<int, Buffer>&) override {
    return NoTest();
  }

 private:
  ClickRunner(const job::JobPlan& plan, int rank, std::shared_ptr<const ClickModel> model,
              ClickLosses* losses, std::unique_ptr<worker::DenseParameters> dense)
      : plan_(plan),
        rank_(rank),
        model_(std::move(model)),
        losses_(losses),
        dense_(std::move(dense)) {}
  static absl::Status NoTest();
  void Note(int64_t step, absl::Span<const double> truth);

  const job::JobPlan& plan_;
  const int rank_;
  const std::shared_ptr<const ClickModel> model_;
  ClickLosses* const losses_;
  const std::unique_ptr<worker::DenseParameters> dense_;
  int64_t epoch_ = -1, fetched_ = 0;  // batches of that epoch
  int64_t computed_ = 0;
  std::map<const worker::StepSlot*, std::vector<double>> truth_;
  std::vector<double> logits_, errors_;  // scratch
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_CLICKS_H_
