// The model "gmf": generalised matrix factorisation (He et al. 2017), logit = w . (user * item) +
// b. The product is elementwise, of one pooled embedding of each of two tables with equal dim.
#include <ATen/ATen.h>

#include "absl/strings/str_cat.h"
#include "models/linear_stack.h"
#include "models/models.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

class GmfModel final : public TorchModel {
 public:
  GmfModel(const ModelInputs& inputs, int threads)
      : TorchModel("gmf", inputs, threads),
        output_("output", inputs.tables[0].dim, {1}, /*relu_last=*/false, NcfInitializers,
                layout()) {}

 private:
  void Logits(const float* flat, const Block& block, const at::Tensor& logits) override {
    at::Tensor product = Kept(block, output_.in(), &product_);
    at::mul_out(product, block.cells[0], block.cells[1]);
    output_.Forward(flat, product, logits);
  }

  void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                 const at::Tensor& d_logits, float* flat_gradient) override {
    const at::Tensor product = Kept(block, output_.in(), &product_);
    const at::Tensor d_product = Kept(block, output_.in(), &d_product_);
    output_.Backward(flat, product, logits, d_logits, flat_gradient, d_product, {});
    at::Tensor d_user = block.pooled_gradients[0], d_item = block.pooled_gradients[1];
    at::mul_out(d_user, d_product, block.cells[1]);
    at::mul_out(d_item, d_product, block.cells[0]);
  }

  LinearStack output_;
  at::Tensor product_, d_product_;
};

}  // namespace

NewModelResult NewGmf(const ModelInputs& inputs, int threads) {
  if (inputs.tables.size() != 2 || inputs.tables[0].fields != 1 || inputs.tables[1].fields != 1 ||
      inputs.numeric != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("gmf multiplies the embedding of a user with that of an item: it needs two "
                     "tables of one field each and no numbers, but has ",
                     inputs.tables.size(), " tables, ", inputs.numeric, " numbers"));
  }
  if (inputs.tables[0].dim != inputs.tables[1].dim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gmf: table ", inputs.tables[0].name, " has dim ", inputs.tables[0].dim, " and table ",
        inputs.tables[1].name, " has dim ", inputs.tables[1].dim, "; make them equal"));
  }
  return {std::make_unique<GmfModel>(inputs, threads)};
}

}  // namespace tandem::models
