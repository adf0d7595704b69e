#include "models/linear_stack.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/check.h"
#include "models/matmul.h"

namespace tandem::models {

LayerInitializers NcfInitializers(int64_t in, int64_t out, bool last) {
  return {last ? LecunUniform(in) : GlorotUniform(in, out), Zeros()};
}

LayerInitializers HiddenInitializers(int64_t in, int64_t out, bool) {
  return {GlorotUniform(in, out), Zeros()};
}

LayerInitializers DlrmInitializers(int64_t in, int64_t out, bool) {
  return {NormalOf(std::sqrt(2.0 / static_cast<double>(in + out))),
          NormalOf(std::sqrt(1.0 / static_cast<double>(out)))};
}

at::Tensor KeptRows(int64_t rows, int64_t width, at::Device device, at::Tensor* storage) {
  if (!storage->defined() || storage->size(0) < rows) {
    *storage = at::empty({rows, width}, at::TensorOptions().dtype(at::kFloat).device(device));
  }
  return storage->narrow(0, 0, rows);
}

LinearStack::LinearStack(const std::string& name, int64_t in, std::vector<int64_t> widths,
                         bool relu_last, LayerInitializerRule initializers, ParameterLayout* layout)
    : layout_(layout) {
  TANDEM_CHECK(!widths.empty());
  for (size_t l = 0; l < widths.size(); ++l) {
    const bool last = l + 1 == widths.size();
    const LayerInitializers first = initializers(in, widths[l], last);
    const std::string prefix = name + "." + std::to_string(l);
    Layer layer;
    layer.in = in;
    layer.out = widths[l];
    layer.weight = layout->Add(prefix + ".weight", {widths[l], in}, first.weight);
    layer.bias = layout->Add(prefix + ".bias", {widths[l]}, first.bias);
    layer.relu = !last || relu_last;
    layers_.push_back(layer);
    in = widths[l];
  }
}

void LinearStack::Forward(const float* flat, const at::Tensor& x, const at::Tensor& y) {
  at::Tensor input = x;
  for (size_t l = 0; l < layers_.size(); ++l) {
    Layer& layer = layers_[l];
    const bool last = l + 1 == layers_.size();
    at::Tensor output = last ? y : KeptRows(x.size(0), layer.out, layout_->device(), &layer.output);
    MultiplyTransposed(input, layout_->View(flat, layer.weight), output, layout_->on_device());
    output.add_(layout_->View(flat, layer.bias));
    if (layer.relu) output.relu_();
    input = output;
  }
}

void LinearStack::Backward(const float* flat, const at::Tensor& x, const at::Tensor& y,
                           const at::Tensor& dy, float* flat_gradient, const at::Tensor& dx,
                           const DenseModel::GradientReady& ready) {
  const int64_t rows = x.size(0);
  at::Tensor output = y, gradient = dy;
  for (size_t l = layers_.size(); l-- > 0;) {
    Layer& layer = layers_[l];
    // A ReLU passes the gradient where its output is positive.
    if (layer.relu) at::threshold_backward_out(gradient, gradient, output, 0);
    const at::Tensor input =
        l == 0 ? x : KeptRows(rows, layer.in, layout_->device(), &layers_[l - 1].output);
    AddTransposedProduct(gradient, input, layout_->View(flat_gradient, layer.weight),
                         layout_->on_device());
    layout_->View(flat_gradient, layer.bias).add_(gradient.sum(0));
    if (ready) ready(layout_->parameters()[static_cast<size_t>(layer.weight)].offset);
    if (l == 0 && !dx.defined()) return;
    const at::Tensor down =
        l == 0 ? dx : KeptRows(rows, layer.in, layout_->device(), &layers_[l - 1].gradient);
    Multiply(gradient, layout_->View(flat, layer.weight), down, layout_->on_device());
    output = input;
    gradient = down;
  }
}

}  // namespace tandem::models
