// ParameterLayout says where each dense parameter lies in the flat buffer, and gives tensors that
// are views of it.
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
  // Appends a parameter and returns its index. Names must differ, because initial values depend on
  // them.
  int Add(const std::string& name, std::vector<int64_t> shape, const Initializer& initializer);

  const std::vector<ParameterInfo>& parameters() const { return parameters_; }
  int64_t size() const { return size_; }  // floats of the flat buffer

  // The device of the flat buffers and of everything that is computed from them.
  at::Device device() const { return device_; }
  // True: compute with the code for GPUs, on any device.
  bool on_device() const { return on_device_; }
  void ComputeOn(at::Device device) {
    device_ = device;
    on_device_ = true;
  }

  // A view of parameter `index` in the flat buffer (or in the flat gradient, which has the same
  // layout). Valid as long as the buffer. The view of a const buffer must only be read.
  at::Tensor View(const float* flat, int index) const;

 private:
  std::vector<ParameterInfo> parameters_;
  int64_t size_ = 0;
  at::Device device_ = at::kCPU;
  bool on_device_ = false;
};

// Initializers by their published names. `in` and `out` are the widths of the layer.
Initializer GlorotUniform(int64_t in, int64_t out);  // +-sqrt(6 / (in + out)), Glorot & Bengio 2010
Initializer LecunUniform(int64_t in);                // +-sqrt(3 / in), LeCun et al. 1998
Initializer NormalOf(double deviation);
Initializer Zeros();

}  // namespace tandem::models

#endif  // TANDEM_MODELS_PARAMETER_LAYOUT_H_
