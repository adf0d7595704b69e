#include "worker/models/torch_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/models/linear_stack.h"

namespace tandem {
namespace {

constexpr int64_t kBlockSamples = 512;
// Gradients are final in the last block alone: where they should leave early, it is a large one.
constexpr int64_t kOverlapBlockSamples = 4096;

absl::Status CheckSize(absl::string_view what, size_t have, int64_t want) {
  if (static_cast<int64_t>(have) == want) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, ": have ", have, " elements, need ", want));
}

at::Tensor View(const float* data, int64_t rows, int64_t width) {
  return at::from_blob(const_cast<float*>(data), {rows, width}, at::kFloat);
}

// Sum of the binary cross-entropies, in double; d_logits = sigmoid(logit) - label.
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

}  // namespace

struct TorchModel::Call {
  const Batch& batch;
  absl::Span<const float> flat;
  absl::Span<const PooledRows> pooled;
  absl::Span<float> logits;
  // Of ForwardBackward only; loss_sum is null in Forward.
  double* loss_sum;
  absl::Span<float> flat_gradient;
  absl::Span<const absl::Span<float>> pooled_gradients;
};

TorchModel::TorchModel(std::string name, const ModelInputs& inputs, int threads)
    : name_(std::move(name)), inputs_(inputs), threads_(std::max(threads, 1)) {
  at::set_num_threads(threads_);
}

absl::Status TorchModel::Forward(const Batch& batch, absl::Span<const float> flat,
                                 absl::Span<const PooledRows> pooled, absl::Span<float> logits) {
  return Run({batch, flat, pooled, logits, nullptr, {}, {}});
}

absl::Status TorchModel::ForwardBackward(const Batch& batch, absl::Span<const float> flat,
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
  try {
    const c10::InferenceMode no_autograd;
    omp_set_num_threads(threads_);  // belongs to the calling thread, which may have changed
    RunBlocks(call);
  } catch (const c10::Error& error) {
    return absl::InternalError(absl::StrCat("model ", name_, ": ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("model ", name_, ": ", error.what()));
  }
  return absl::OkStatus();
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
    const at::Tensor d_logits = KeptRows(samples, 1, &d_logits_);
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
  block_.cell_gradients.clear();
  for (size_t t = 0; t < inputs_.tables.size(); ++t) {
    const int64_t width = int64_t{inputs_.tables[t].fields} * inputs_.tables[t].dim;
    block_.cells.push_back(View(call.pooled[t].data() + begin * width, samples, width));
    if (call.loss_sum == nullptr) continue;
    block_.cell_gradients.push_back(
        View(call.pooled_gradients[t].data() + begin * width, samples, width));
  }
}

}  // namespace tandem
