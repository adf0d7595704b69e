// A synthetic click model that replaces a job's model and data. The trained model has the same form
// as the planted model that draws the labels. The best possible logloss is therefore known, and
// also how far the trained model is from it.
//
// A sample has one id in each field and some numbers. Each of the job's tables has `fields` fields
// of `ids` ids, which follow Zipf's law. With a row for each id, and dense parameters for a bias
// and a weight of each number,
//
//   logit = bias + <weights, numbers> + the first element of the row of each id
//         + for each two ids of a table the product <.,.> of the rest of their rows
//
// This is logistic regression if rows have one element, and a factorisation machine (Rendle 2010)
// if they have more. The planted rows, weights and bias are functions of the seed. Each sample is a
// function of (seed, rank, step), so jobs that differ in policies, optimizers or times train on the
// same samples.
//
// A loss is the expected value over the label of a sample: log(1 + e^z) - p z for the logit z and
// the planted probability p. Random labels therefore add no noise to it, and its minimum is the
// entropy of p. Each sample is used once, so these are losses on unseen samples.
//
// Thread safety: the same as worker::TaskRunner. Const methods of ClickModel may run on any thread.
#ifndef TANDEM_TOOLS_SIM_CLICKS_H_
#define TANDEM_TOOLS_SIM_CLICKS_H_

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
  int64_t dense = 1;  // dense parameters: the bias, and a weight for each of dense - 1 numbers
  int64_t steps = 0;  // of each worker, in an epoch
  uint64_t seed = 1;
};

// Mean losses of the samples in the first step of each worker, and in the last tenth of
// their steps.
struct ClickLosses {
  struct Mean {
    double loss = 0, least = 0;  // sums of expected losses: of this model, of the planted model
    int64_t samples = 0;
    double Loss() const { return samples == 0 ? 0 : loss / static_cast<double>(samples); }
    double Least() const { return samples == 0 ? 0 : least / static_cast<double>(samples); }
    double Above() const { return Loss() - Least(); }
  };
  Mean first, last;
  // The loss ends further above the minimum than it began.
  bool diverged() const { return !(last.Above() <= first.Above()); }
};

class ClickModel {
 public:
  // `plan` must outlive the model.
  ClickModel(const job::ResolvedJob& plan, const ClickOptions& options);

  const ClickOptions& options() const { return options_; }
  // Fills in the samples of a worker's step and their labels; truth[s]: the logit of the
  // label's probability.
  void FillBatch(int rank, int64_t step, data::Batch* batch, std::vector<double>* truth) const;

  // Both add to the logit of each sample: the dense part, and the rows of one input. `rows`:
  // by key.
  static void AddDense(const data::Batch& batch, absl::Span<const float> dense,
                       std::vector<double>* logits);
  static void AddRows(const data::SparseInput& input, size_t dim,
                      absl::Span<const float* const> rows, std::vector<double>* logits);
  // Both write sums of gradients. `errors`: the derivatives of the loss by the logits.
  static void DenseGradient(const data::Batch& batch, absl::Span<const double> errors,
                            absl::Span<float> gradient);
  static void RowGradients(const data::SparseInput& input, size_t dim,
                           absl::Span<const double> errors, absl::Span<const float* const> rows,
                           absl::Span<float* const> gradients);

  // The planted row of a key, and the planted dense parameters.
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
  // All workers add to `losses`. `plan` and `losses` must outlive the runner.
  static absl::StatusOr<std::unique_ptr<worker::TaskRunner>> New(
      const job::ResolvedJob& plan, int rank, std::shared_ptr<const ClickModel> model,
      ClickLosses* losses);

  worker::DenseParameters& dense() override { return *dense_; }
  bool has_test_data() const override { return false; }
  int64_t EstimatedRows() const override {
    return model_->options().steps * plan_.job.train().batch_size();
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
  ClickRunner(const job::ResolvedJob& plan, int rank, std::shared_ptr<const ClickModel> model,
              ClickLosses* losses, std::unique_ptr<worker::DenseParameters> dense)
      : plan_(plan),
        rank_(rank),
        model_(std::move(model)),
        losses_(losses),
        dense_(std::move(dense)) {}
  static absl::Status NoTest();
  void Note(int64_t step, absl::Span<const double> truth);

  const job::ResolvedJob& plan_;
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

#endif  // TANDEM_TOOLS_SIM_CLICKS_H_
