// Where each dense parameter lies in the flat buffer, and tensors that look into it without a copy.
#ifndef TANDEM_MODELS_PARAMETER_LAYOUT_H_
#define TANDEM_MODELS_PARAMETER_LAYOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "proto/job.pb.h"

namespace tandem::models {

class ParameterLayout {
 public:
  // Appends a parameter and returns its index. Names must differ: first values hang on them.
  int Add(const std::string& name, std::vector<int64_t> shape, const Initializer& initializer);

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  int64_t size() const { return size_; }  // floats of the flat buffer

  // Where flat buffers are, and what is computed from them.
  at::Device device() const { return device_; }
  void set_device(at::Device device) { device_ = device; }

  // Parameter `index` inside the flat buffer (or inside the flat gradient, laid out alike). Valid
  // as long as the buffer. The tensor of a const buffer must only be read.
  at::Tensor View(const float* flat, int index) const;

 private:
  std::vector<ParameterInfo> parameters_;
  int64_t size_ = 0;
  at::Device device_ = at::kCPU;
};

// Initialisers by their published names; in and out are the layer's widths.
Initializer GlorotUniform(int64_t in, int64_t out);  // +-sqrt(6 / (in + out)), Glorot & Bengio 2010
Initializer LecunUniform(int64_t in);                // +-sqrt(3 / in), LeCun et al. 1998
Initializer NormalOf(double deviation);
Initializer Zeros();

}  // namespace tandem::models

#endif  // TANDEM_MODELS_PARAMETER_LAYOUT_H_
