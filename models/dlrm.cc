// The model "dlrm": deep learning recommendation model (Naumov et al. 2019).
//
//   d = bottom MLP(numbers)                                  ReLU after every layer, width = dim
//   t = [ d ; dot products of all pairs of {d, embeddings} ]
//   logit = top MLP(t)                                       ReLU after every layer but the last
//
// Every pooled embedding of every table takes part as one vector. A field with several ids has the
// sum of their rows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/linear_stack.h"
#include "models/models.h"
#include "models/pair_interaction.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

// With fewer samples than this, another thread is slower.
constexpr int64_t kSamplesPerThread = 64;

int VectorCount(const ModelInputs& inputs) {
  int vectors = 1;  // the bottom output
  for (const ModelInputs::TableInput& table : inputs.tables) vectors += table.fields;
  return vectors;
}

// The vectors of a block: the bottom output first, then the pooled embeddings in order.
template <typename T>
std::vector<VectorOfSamples<T>> Vectors(const at::Tensor& bottom,
                                        const std::vector<at::Tensor>& cells) {
  const int64_t dim = bottom.size(1);
  std::vector<VectorOfSamples<T>> vectors = {{bottom.data_ptr<float>(), bottom.stride(0)}};
  for (const at::Tensor& table : cells) {
    for (int64_t column = 0; column < table.size(1); column += dim) {
      vectors.push_back({table.data_ptr<float>() + column, table.stride(0)});
    }
  }
  return vectors;
}

// ---- the same on a device, by batched products ----

// The vectors of a block as [B, vectors, dim].
at::Tensor Stacked(const at::Tensor& bottom, const std::vector<at::Tensor>& cells) {
  const int64_t samples = bottom.size(0), dim = bottom.size(1);
  std::vector<at::Tensor> all = {bottom.unsqueeze(1)};
  for (const at::Tensor& table : cells) {
    all.push_back(table.view({samples, table.size(1) / dim, dim}));
  }
  return at::cat(all, 1);
}

// The places of (1,0), (2,0), (2,1), (3,0), ... in a square matrix, row by row.
at::Tensor PairIndices(const at::Tensor& vectors) {
  const int64_t n = vectors.size(1);
  const at::Tensor below =
      at::tril_indices(n, n, -1, at::TensorOptions().dtype(at::kLong).device(vectors.device()));
  return below[0] * n + below[1];
}

at::Tensor PairsOf(const at::Tensor& vectors, const at::Tensor& indices) {
  const at::Tensor all = at::bmm(vectors, vectors.transpose(1, 2));
  return all.flatten(1).index_select(1, indices);
}

// The gradient of a product goes to both of its vectors, each time multiplied by the other vector.
void PairsBackward(const at::Tensor& vectors, const at::Tensor& indices, const at::Tensor& d_pairs,
                   const at::Tensor& d_bottom, const std::vector<at::Tensor>& d_cells) {
  const int64_t samples = vectors.size(0), n = vectors.size(1), dim = vectors.size(2);
  at::Tensor d_all = at::zeros({samples, n * n}, vectors.options());
  d_all.index_copy_(1, indices, d_pairs);
  d_all = d_all.view({samples, n, n});
  const at::Tensor d_vectors = at::bmm(d_all + d_all.transpose(1, 2), vectors);
  d_bottom.copy_(d_vectors.select(1, 0));
  int64_t first = 1;
  for (const at::Tensor& table : d_cells) {
    const int64_t fields = table.size(1) / dim;
    table.view({samples, fields, dim}).copy_(d_vectors.narrow(1, first, fields));
    first += fields;
  }
}

class DlrmModel final : public TorchModel {
 public:
  DlrmModel(const ModelInputs& inputs, const std::vector<int64_t>& bottom,
            const std::vector<int64_t>& top, int threads)
      : TorchModel("dlrm", inputs, threads),
        interaction_(VectorCount(inputs), static_cast<int>(bottom.back())),
        bottom_("bottom", inputs.numeric, bottom, /*relu_last=*/true, DlrmInitializers, layout()),
        top_("top", bottom.back() + interaction_.pairs(), top, /*relu_last=*/false,
             DlrmInitializers, layout()) {}

 private:
  int64_t dim() const { return bottom_.out(); }

  void Logits(const float* flat, const Block& block, const at::Tensor& logits) override {
    const at::Tensor x = Kept(block, top_.in(), &x_);
    const at::Tensor bottom = x.narrow(1, 0, dim());
    bottom_.Forward(flat, block.numbers, bottom);
    if (on_device()) {
      const at::Tensor vectors = Stacked(bottom, block.cells);
      if (!pair_indices_.defined()) pair_indices_ = PairIndices(vectors);
      x.narrow(1, dim(), interaction_.pairs()).copy_(PairsOf(vectors, pair_indices_));
      return top_.Forward(flat, x, logits);
    }
    const auto vectors = Vectors<const float>(bottom, block.cells);
    float* pairs = x.data_ptr<float>() + dim();
    at::parallel_for(0, block.samples, kSamplesPerThread, [&](int64_t begin, int64_t end) {
      interaction_.Forward(begin, end, vectors, pairs, x.stride(0));
    });
    top_.Forward(flat, x, logits);
  }

  void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                 const at::Tensor& d_logits, float* flat_gradient) override {
    const at::Tensor x = Kept(block, top_.in(), &x_);
    const at::Tensor dx = Kept(block, top_.in(), &dx_);
    top_.Backward(flat, x, logits, d_logits, flat_gradient, dx, ReadyAfter(block));

    const at::Tensor bottom = x.narrow(1, 0, dim());
    const at::Tensor d_bottom = Kept(block, dim(), &d_bottom_);
    if (on_device()) {
      PairsBackward(Stacked(bottom, block.cells), pair_indices_,
                    dx.narrow(1, dim(), interaction_.pairs()), d_bottom, block.pooled_gradients);
    } else {
      PairsBackwardHere(block, bottom, dx, d_bottom);
    }
    d_bottom.add_(dx.narrow(1, 0, dim()));  // the bottom output is also an input of the top
    bottom_.Backward(flat, block.numbers, bottom, d_bottom, flat_gradient, /*dx=*/{},
                     ReadyAfter(block));
  }

  void PairsBackwardHere(const Block& block, const at::Tensor& bottom, const at::Tensor& dx,
                         const at::Tensor& d_bottom) {
    const auto vectors = Vectors<const float>(bottom, block.cells);
    const auto d_vectors = Vectors<float>(d_bottom, block.pooled_gradients);
    const float* d_pairs = dx.data_ptr<float>() + dim();
    at::parallel_for(0, block.samples, kSamplesPerThread, [&](int64_t begin, int64_t end) {
      interaction_.Backward(begin, end, vectors, d_pairs, dx.stride(0), d_vectors);
    });
  }

  const PairInteraction interaction_;
  LinearStack bottom_, top_;
  at::Tensor x_, dx_, d_bottom_;
  at::Tensor pair_indices_;  // on the device
};

absl::Status CheckShape(const Dlrm& config, const ModelInputs& inputs) {
  TANDEM_RETURN_IF_ERROR(CheckWidths("dlrm.bottom", config.bottom()));
  TANDEM_RETURN_IF_ERROR(CheckWidths("dlrm.top", config.top()));
  if (inputs.numeric == 0 || config.bottom().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dlrm needs numbers in the data and at least one bottom layer to read them "
        "(numbers: ",
        inputs.numeric, ", bottom layers: ", config.bottom_size(), "); without numbers, use mlp"));
  }
  const int width = config.bottom(config.bottom_size() - 1);
  for (const ModelInputs::TableInput& table : inputs.tables) {
    if (table.dim == width) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "dlrm multiplies the bottom output with the rows of every table, but the last "
        "width of dlrm.bottom is ",
        width, " and table ", table.name, " has dim ", table.dim, "; make them equal"));
  }
  return absl::OkStatus();
}

}  // namespace

NewModelResult NewDlrm(const Dlrm& config, const ModelInputs& inputs, int threads) {
  TANDEM_RETURN_IF_ERROR(CheckShape(config, inputs));
  const std::vector<int64_t> bottom(config.bottom().begin(), config.bottom().end());
  std::vector<int64_t> top(config.top().begin(), config.top().end());
  top.push_back(1);
  return {std::make_unique<DlrmModel>(inputs, bottom, top, threads)};
}

}  // namespace tandem::models
