// The model "logistic_regression": logit = sum of all pooled embeddings + w . numbers + b. Tables
// have dim 1. A row is the weight of one category (or of one libsvm index), so the sparse half of
// the model lives on the servers.
#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "models/linear_stack.h"
#include "models/models.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

// The usual initial values are zeros, since a linear model has no symmetry to break.
LayerInitializers ZeroInitializers(int64_t, int64_t, bool) { return {Zeros(), Zeros()}; }

class LogisticRegressionModel final : public TorchModel {
 public:
  LogisticRegressionModel(const ModelInputs& inputs, int threads)
      : TorchModel("logistic_regression", inputs, threads),
        numbers_("numbers", inputs.numeric, {1}, /*relu_last=*/false, ZeroInitializers, layout()) {}

 private:
  void Logits(const float* flat, const Block& block, const at::Tensor& logits) override {
    numbers_.Forward(flat, block.numbers, logits);
    for (const at::Tensor& cells : block.cells) logits.add_(cells.sum(1, /*keepdim=*/true));
  }

  void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                 const at::Tensor& d_logits, float* flat_gradient) override {
    for (const at::Tensor& gradient : block.pooled_gradients) gradient.copy_(d_logits);
    numbers_.Backward(flat, block.numbers, logits, d_logits, flat_gradient, /*dx=*/{},
                      /*ready=*/{});
  }

  LinearStack numbers_;
};

}  // namespace

NewModelResult NewLogisticRegression(const ModelInputs& inputs, int threads) {
  for (const ModelInputs::TableInput& table : inputs.tables) {
    if (table.dim == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("logistic_regression: table ", table.name,
                                                   " has dim ", table.dim,
                                                   ", but a row is one weight; set its dim to 1"));
  }
  return {std::make_unique<LogisticRegressionModel>(inputs, threads)};
}

}  // namespace tandem::models
