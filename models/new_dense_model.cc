#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "models/models.h"
#include "models/torch_model.h"

namespace tandem::models {
namespace {

absl::Status CheckInputs(const ModelInputs& inputs) {
  if (inputs.numeric < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sample cannot have ", inputs.numeric, " numbers"));
  }
  for (const ModelInputs::TableInput& table : inputs.tables) {
    if (table.fields > 0 && table.dim > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("table ", table.name, " gives the model ",
                                                   table.fields, " fields of dim ", table.dim,
                                                   "; both must be at least 1"));
  }
  if (CellFloats(inputs) + inputs.numeric > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the model has no inputs: the data has neither numbers nor categorical fields");
}

}  // namespace

int64_t CellFloats(const ModelInputs& inputs) {
  int64_t floats = 0;
  for (const ModelInputs::TableInput& table : inputs.tables) {
    floats += int64_t{table.fields} * table.dim;
  }
  return floats;
}

absl::Status CheckWidths(absl::string_view what, absl::Span<const int> widths) {
  constexpr int kMaxWidth = 65536;
  for (const int width : widths) {
    if (width > 0 && width <= kMaxWidth) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a layer of width ", width, "; must be from 1 to ", kMaxWidth));
  }
  return absl::OkStatus();
}

namespace {

NewModelResult OnProcessor(const Model& config, const ModelInputs& inputs, int threads) {
  switch (config.kind_case()) {
    case Model::kLogisticRegression:
      return NewLogisticRegression(inputs, threads);
    case Model::kMlp:
      return NewMlp(config.mlp(), inputs, threads);
    case Model::kDlrm:
      return NewDlrm(config.dlrm(), inputs, threads);
    case Model::kGmf:
      return NewGmf(inputs, threads);
    case Model::kNeumf:
      return NewNeuMf(config.neumf(), inputs, threads);
    case Model::kScript:
      return NewScriptModel(config.script(), inputs, threads);
    case Model::kProgram:
    case Model::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "the job names no model; use one of logistic_regression, mlp, dlrm, gmf, neumf, script");
}

}  // namespace

int CudaDevices() { return at::hasCUDA() ? static_cast<int>(at::getNumGPUs()) : 0; }

absl::StatusOr<std::unique_ptr<DenseModel>> NewDenseModel(const Model& config,
                                                          const ModelInputs& inputs, int threads,
                                                          ModelDevice device, int gpu) {
  TANDEM_RETURN_IF_ERROR(CheckInputs(inputs));
  // LibTorch has two thread pools, and one of them waits for ever for a thread that cannot be
  // started. That pool begins with one thread for each processor, even if fewer are asked for.
  const int processors = static_cast<int>(sysconf(_SC_NPROCESSORS_CONF));
  TANDEM_RETURN_IF_ERROR(CanStartThreads(std::max(2 * (threads - 1), processors - 1)));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DenseModel> model, OnProcessor(config, inputs, threads));
  if (device == ModelDevice::kCpu) return model;
  if (device == ModelDevice::kCuda && CudaDevices() == 0) {
    return absl::FailedPreconditionError(
        "dense.device: CUDA, but LibTorch finds no GPU (a driver, and a LibTorch with CUDA?)");
  }
  if (config.has_script()) {
    return absl::FailedPreconditionError("a module from a file computes on the processor");
  }
  // All other models are TorchModels.
  static_cast<TorchModel&>(*model).ComputeOn(
      device == ModelDevice::kCuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(gpu))
                                   : at::Device(at::kCPU));
  return model;
}

}  // namespace tandem::models
