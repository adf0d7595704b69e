#include "models/torch_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "models/linear_stack.h"

namespace tandem::models {
namespace {

constexpr int64_t kBlockSamples = 512;
// A larger block for gradients that should leave early: they are final only in the last block,
// which should therefore be a large part of the batch.
constexpr int64_t kOverlapBlockSamples = 4096;

absl::Status CheckSize(absl::string_view what, size_t have, int64_t want) {
  if (static_cast<int64_t>(have) == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": have ", have, " elements, need ", want));
}

at::Tensor View(const float* data, int64_t rows, int64_t width) {
  return at::from_blob(const_cast<float*>(data), {rows, width}, at::kFloat);
}

// Calls the function and turns exceptions of LibTorch into a Status.
template <typename Function>
absl::Status AtBorder(const std::string& name, const Function& function) {
  try {
    const c10::InferenceMode no_autograd;
    function();
  } catch (const c10::Error& error) {
    const absl::Status why = ExceptionStatus();
    if (!absl::IsResourceExhausted(why)) {
      return absl::InternalError(
          absl::StrCat("model ", name, ": ", error.what_without_backtrace()));
    }
    return absl::Status(why.code(), absl::StrCat("model ", name, ": ", why.message()));
  } catch (...) {
    const absl::Status why = ExceptionStatus();
    return absl::Status(why.code(), absl::StrCat("model ", name, ": ", why.message()));
  }
  return absl::OkStatus();
}

// The sum of the binary cross-entropies, in double. Sets d_logits = sigmoid(logit) - label.
double BinaryCrossEntropy(const float* labels, const float* logits, int64_t n, float* d_logits) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double z = logits[i];
    const double small = std::exp(-std::fabs(z));  // never overflows
    sum += std::max(z, 0.0) - z * labels[i] + std::log1p(small);
    const double sigmoid = (z >= 0.0 ? 1.0 : small) / (1.0 + small);
    d_logits[i] = static_cast<float>(sigmoid - labels[i]);
  }
  return sum;
}

// The same for tensors [n, 1] on any device; the sum stays there.
at::Tensor BinaryCrossEntropyOf(const at::Tensor& labels, const at::Tensor& logits,
                                const at::Tensor& d_logits) {
  const at::Tensor z = logits.to(at::kDouble), y = labels.to(at::kDouble);
  d_logits.copy_(at::sigmoid(z) - y);
  return (z.clamp_min(0) - z * y + at::log1p(at::exp(-at::abs(z)))).sum();
}

}  // namespace

struct TorchModel::Call {
  const data::Batch& batch;
  absl::Span<const float> flat;
  absl::Span<const PooledRows> pooled;
  absl::Span<float> logits;
  // Set by ForwardBackward only. loss_sum is null in Forward.
  double* loss_sum;
  absl::Span<float> flat_gradient;
  absl::Span<const absl::Span<float>> pooled_gradients;
};

TorchModel::TorchModel(std::string name, const ModelInputs& inputs, int threads)
    : name_(std::move(name)), inputs_(inputs), threads_(std::max(threads, 1)) {
  at::set_num_threads(threads_);
}

absl::Status TorchModel::Forward(const data::Batch& batch, absl::Span<const float> flat,
                                 absl::Span<const PooledRows> pooled, absl::Span<float> logits) {
  return Run({batch, flat, pooled, logits, nullptr, {}, {}});
}

absl::Status TorchModel::ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                                         absl::Span<const PooledRows> pooled,
                                         absl::Span<float> logits, double* loss_sum,
                                         absl::Span<float> flat_gradient,
                                         absl::Span<const absl::Span<float>> pooled_gradients) {
  return Run({batch, flat, pooled, logits, loss_sum, flat_gradient, pooled_gradients});
}

absl::Status TorchModel::Run(const Call& call) {
  if (const absl::Status status = Check(call); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat("model ", name_, ": ", status.message()));
  }
  return AtBorder(name_, [&] {
    // The setting belongs to the calling thread, which may have changed.
    omp_set_num_threads(threads_);
    on_device() ? RunOnDevice(call) : RunBlocks(call);
  });
}

absl::Status TorchModel::Check(const Call& call) const {
  const int64_t samples = call.batch.samples;
  if (call.batch.numeric != inputs_.numeric) {
    return absl::InvalidArgumentError(absl::StrCat("the batch has ", call.batch.numeric,
                                                   " numbers a sample, need ", inputs_.numeric));
  }
  TANDEM_RETURN_IF_ERROR(
      CheckSize("numbers", call.batch.numbers.size(), samples * inputs_.numeric));
  TANDEM_RETURN_IF_ERROR(CheckSize("parameters", call.flat.size(), layout_.size()));
  TANDEM_RETURN_IF_ERROR(CheckSize("logits", call.logits.size(), samples));
  const bool backward = call.loss_sum != nullptr;
  const int64_t tables = static_cast<int64_t>(inputs_.tables.size());
  TANDEM_RETURN_IF_ERROR(CheckSize("tables of pooled rows", call.pooled.size(), tables));
  if (backward) {
    TANDEM_RETURN_IF_ERROR(CheckSize("labels", call.batch.labels.size(), samples));
    TANDEM_RETURN_IF_ERROR(CheckSize("gradient", call.flat_gradient.size(), layout_.size()));
    TANDEM_RETURN_IF_ERROR(
        CheckSize("tables of pooled gradients", call.pooled_gradients.size(), tables));
  }
  for (int64_t t = 0; t < tables; ++t) {
    const ModelInputs::TableInput& table = inputs_.tables[t];
    const int64_t floats = samples * table.fields * table.dim;
    const std::string rows = absl::StrCat("pooled rows of table ", table.name);
    TANDEM_RETURN_IF_ERROR(CheckSize(rows, call.pooled[t].size(), floats));
    if (!backward) continue;
    TANDEM_RETURN_IF_ERROR(
        CheckSize(rows + " (gradient)", call.pooled_gradients[t].size(), floats));
  }
  return absl::OkStatus();
}

void TorchModel::RunBlocks(const Call& call) {
  const bool backward = call.loss_sum != nullptr;
  const float* flat = call.flat.data();
  if (backward) {
    *call.loss_sum = 0.0;
    std::fill(call.flat_gradient.begin(), call.flat_gradient.end(), 0.0f);
  }
  const int64_t block = gradient_ready() ? kOverlapBlockSamples : kBlockSamples;
  for (int64_t begin = 0; begin < call.batch.samples; begin += block) {
    const int64_t samples = std::min(block, call.batch.samples - begin);
    ViewBlock(call, begin, samples);
    block_.last = begin + samples == call.batch.samples;
    const at::Tensor logits = View(&call.logits[begin], samples, 1);
    Logits(flat, block_, logits);
    if (!backward) continue;
    const at::Tensor d_logits = Kept(block_, 1, &d_logits_);
    *call.loss_sum += BinaryCrossEntropy(&call.batch.labels[begin], &call.logits[begin], samples,
                                         d_logits.data_ptr<float>());
    Gradients(flat, block_, logits, d_logits, call.flat_gradient.data());
  }
}

void TorchModel::ViewBlock(const Call& call, int64_t begin, int64_t samples) {
  block_.samples = samples;
  block_.numbers =
      View(call.batch.numbers.data() + begin * inputs_.numeric, samples, inputs_.numeric);
  block_.cells.clear();
  block_.pooled_gradients.clear();
  for (size_t t = 0; t < inputs_.tables.size(); ++t) {
    const int64_t width = int64_t{inputs_.tables[t].fields} * inputs_.tables[t].dim;
    block_.cells.push_back(View(call.pooled[t].data() + begin * width, samples, width));
    if (call.loss_sum == nullptr) continue;
    block_.pooled_gradients.push_back(
        View(call.pooled_gradients[t].data() + begin * width, samples, width));
  }
}

at::Tensor TorchModel::Kept(const Block& block, int64_t width, at::Tensor* storage) const {
  return KeptRows(block.samples, width, layout_.device(), storage);
}

// ---- on a device ----

absl::StatusOr<float*> TorchModel::DeviceGradient(bool zero) {
  if (!on_device()) {
    return absl::FailedPreconditionError(absl::StrCat("model ", name_, ": not on a device"));
  }
  float* gradient = nullptr;
  TANDEM_RETURN_IF_ERROR(AtBorder(name_, [&] { gradient = DeviceGradientOrThrow(zero); }));
  return gradient;
}

float* TorchModel::DeviceGradientOrThrow(bool zero) {
  if (!device_gradient_.defined()) {
    device_gradient_ =
        at::zeros({layout_.size()}, at::TensorOptions().dtype(at::kFloat).device(layout_.device()));
  }
  if (zero) device_gradient_.zero_();
  return device_gradient_.data_ptr<float>();
}

// Copies go through pinned memory and do not wait, so they are in order with the kernels of the
// model's stream. A copy to the host has ended when a later value of the stream has been read.
at::Tensor TorchModel::ToDevice(const at::Tensor& host) const {
  const at::Device device = layout_.device();
  return (device.is_cuda() ? host.pin_memory() : host)
      .to(host.options().device(device), /*non_blocking=*/true, /*copy=*/true);
}

at::Tensor TorchModel::ToHost(const at::Tensor& values) const {
  return at::empty(values.sizes(),
                   at::TensorOptions().dtype(at::kFloat).pinned_memory(values.is_cuda()))
      .copy_(values, /*non_blocking=*/true);
}

// Copies the inputs of the block to the device, and makes room there for its gradients.
void TorchModel::CopyBlockToDevice() {
  block_.numbers = ToDevice(block_.numbers);
  for (at::Tensor& cells : block_.cells) cells = ToDevice(cells);
  for (at::Tensor& gradient : block_.pooled_gradients) {
    gradient = at::empty_like(gradient, gradient.options().device(layout_.device()));
  }
}

void TorchModel::RunOnDevice(const Call& call) {
  const int64_t samples = call.batch.samples;
  const bool backward = call.loss_sum != nullptr;
  const at::Tensor flat = ToDevice(View(call.flat.data(), 1, layout_.size()));
  const float* const parameters = flat.data_ptr<float>();
  float* const flat_gradient = DeviceGradientOrThrow(/*zero=*/backward);
  if (backward) *call.loss_sum = 0.0;
  if (samples > 0) {
    ViewBlock(call, 0, samples);
    // Pairs of the caller's memory and the pinned copy that goes there.
    std::vector<std::pair<at::Tensor, at::Tensor>> results;
    const std::vector<at::Tensor> host_gradients = block_.pooled_gradients;
    CopyBlockToDevice();
    block_.last = true;
    const at::Tensor logits = at::empty({samples, 1}, flat.options());
    Logits(parameters, block_, logits);
    results.emplace_back(View(call.logits.data(), samples, 1), ToHost(logits));
    at::Tensor last = logits.select(0, 0).to(at::kDouble);
    if (backward) {
      const at::Tensor labels = ToDevice(View(call.batch.labels.data(), samples, 1));
      const at::Tensor d_logits = at::empty_like(logits);
      last = BinaryCrossEntropyOf(labels, logits, d_logits);
      Gradients(parameters, block_, logits, d_logits, flat_gradient);
      for (size_t t = 0; t < host_gradients.size(); ++t) {
        results.emplace_back(host_gradients[t], ToHost(block_.pooled_gradients[t]));
      }
    }
    const double loss = last.item<double>();  // waits for all copies
    if (backward) *call.loss_sum = loss;
    for (const auto& [own, copy] : results) own.copy_(copy);
  }
  if (!backward || gradient_stays_) return;
  View(call.flat_gradient.data(), 1, layout_.size()).copy_(device_gradient_);
}

}  // namespace tandem::models
