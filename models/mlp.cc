// The model "mlp": a multi-layer perceptron. Its input is everything that a sample has: the
// pooled embeddings of all tables, in order, then the numbers. Hidden layers have ReLU; there is
// one output. With two tables, user and item, it is the MLP of Neural Collaborative Filtering (He
// et al. 2017).
#include "base/status_macros.h"
#include "models/concatenation.h"
#include "models/linear_stack.h"
#include "models/models.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

class MlpModel final : public TorchModel {
 public:
  MlpModel(const ModelInputs& inputs, const std::vector<int64_t>& widths, int threads)
      : TorchModel("mlp", inputs, threads),
        layers_("mlp", CellFloats(inputs) + inputs.numeric, widths, /*relu_last=*/false,
                NcfInitializers, layout()) {}

 private:
  void Logits(const float* flat, const Block& block, const at::Tensor& logits) override {
    const at::Tensor x = Kept(block, layers_.in(), &x_);
    const int64_t numbers = CopyToColumns(block.cells, 0, x);
    if (inputs().numeric > 0) CopyToColumns({block.numbers}, numbers, x);
    layers_.Forward(flat, x, logits);
  }

  void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                 const at::Tensor& d_logits, float* flat_gradient) override {
    const at::Tensor x = Kept(block, layers_.in(), &x_);
    const at::Tensor dx = Kept(block, layers_.in(), &dx_);
    layers_.Backward(flat, x, logits, d_logits, flat_gradient, dx, ReadyAfter(block));
    CopyFromColumns(dx, 0, block.pooled_gradients);
  }

  LinearStack layers_;
  at::Tensor x_, dx_;
};

}  // namespace

NewModelResult NewMlp(const Mlp& config, const ModelInputs& inputs, int threads) {
  TANDEM_RETURN_IF_ERROR(CheckWidths("mlp.hidden", config.hidden()));
  std::vector<int64_t> widths(config.hidden().begin(), config.hidden().end());
  widths.push_back(1);
  return {std::make_unique<MlpModel>(inputs, widths, threads)};
}

}  // namespace tandem::models
