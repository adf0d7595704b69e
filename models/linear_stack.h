// LinearStack: linear layers with ReLU between them. Forward and backward are written by hand and
// work on buffers that are kept between steps: no autograd graph, no allocation of activations.
//
//   y = relu(... relu(x W0^T + b0) ...) Wn^T + bn        (with `relu_last` also around the whole)
//
// Weights W [out, in] and biases b [out] are views of the flat buffer.
#ifndef TANDEM_MODELS_LINEAR_STACK_H_
#define TANDEM_MODELS_LINEAR_STACK_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/parameter_layout.h"

namespace tandem::models {

// The initializers of a layer's weights and biases.
struct LayerInitializers {
  Initializer weight;
  Initializer bias;
};
using LayerInitializerRule = LayerInitializers (*)(int64_t in, int64_t out, bool last);

// Glorot uniform for hidden layers, LeCun uniform for the last layer, biases 0. The authors of
// Neural Collaborative Filtering trained with these.
LayerInitializers NcfInitializers(int64_t in, int64_t out, bool last);
// Glorot uniform for all layers, biases 0: for a stack whose last layer is hidden, too.
LayerInitializers HiddenInitializers(int64_t in, int64_t out, bool last);
// Weights N(0, 2 / (in + out)), biases N(0, 1 / out) (variances), as used by the authors of DLRM.
LayerInitializers DlrmInitializers(int64_t in, int64_t out, bool last);

class LinearStack {
 public:
  // Creates one layer for each of `widths` (at least one). The parameters are registered in
  // `layout` as NAME.0.weight, NAME.0.bias, NAME.1.weight, ... `layout` must outlive the stack.
  LinearStack(const std::string& name, int64_t in, std::vector<int64_t> widths, bool relu_last,
              LayerInitializerRule initializers, ParameterLayout* layout);

  int64_t in() const { return layers_.front().in; }
  int64_t out() const { return layers_.back().out; }

  // x: [B, in], y: [B, out], both with stride(1) == 1. Keeps the hidden activations for Backward.
  void Forward(const float* flat, const at::Tensor& x, const at::Tensor& y);

  // Call after Forward with the same flat, x and y. dy: [B, out]; it is overwritten. Adds to the
  // stack's part of `flat_gradient` and writes dx [B, in] if dx is defined. Goes from the last
  // layer to the first; after each layer it calls `ready`, if set, with the offset of the layer's
  // weights.
  void Backward(const float* flat, const at::Tensor& x, const at::Tensor& y, const at::Tensor& dy,
                float* flat_gradient, const at::Tensor& dx, const DenseModel::GradientReady& ready);

 private:
  struct Layer {
    int64_t in = 0, out = 0;
    int weight = 0, bias = 0;  // indices in the layout
    bool relu = false;
    at::Tensor output;    // [largest B so far, out]; hidden layers only
    at::Tensor gradient;  // gradient of `output`
  };

  const ParameterLayout* layout_;
  std::vector<Layer> layers_;
};

// The first `rows` rows of `storage`, which grows to [rows, width] if it has fewer rows.
at::Tensor KeptRows(int64_t rows, int64_t width, at::Device device, at::Tensor* storage);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_LINEAR_STACK_H_
