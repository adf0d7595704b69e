#include "models/parameter_layout.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "base/check.h"

namespace tandem::models {
namespace {

Initializer Make(Initializer::Kind kind, double scale) {
  Initializer initializer;
  initializer.set_kind(kind);
  initializer.set_scale(scale);
  return initializer;
}

}  // namespace

int ParameterLayout::Add(const std::string& name, std::vector<int64_t> shape,
                         const Initializer& initializer) {
  ParameterInfo info;
  info.name = name;
  info.offset = size_;
  info.size = 1;
  for (const int64_t length : shape) info.size *= length;
  info.shape = std::move(shape);
  info.initializer = initializer;
  for (const ParameterInfo& other : parameters_) TANDEM_CHECK(other.name != name);
  size_ += info.size;
  parameters_.push_back(std::move(info));
  return static_cast<int>(parameters_.size()) - 1;
}

at::Tensor ParameterLayout::View(const float* flat, int index) const {
  const ParameterInfo& info = parameters_[index];
  return at::from_blob(const_cast<float*>(flat) + info.offset, info.shape,
                       at::TensorOptions().dtype(at::kFloat).device(device_));
}

Initializer GlorotUniform(int64_t in, int64_t out) {
  return Make(Initializer::UNIFORM, std::sqrt(6.0 / static_cast<double>(in + out)));
}

Initializer LecunUniform(int64_t in) {
  return Make(Initializer::UNIFORM, std::sqrt(3.0 / static_cast<double>(in)));
}

Initializer NormalOf(double deviation) { return Make(Initializer::NORMAL, deviation); }

Initializer Zeros() { return Make(Initializer::ZERO, 0.0); }

}  // namespace tandem::models
