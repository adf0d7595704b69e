// The border to the dense engine. Rows come in and gradients go out as plain spans; exceptions of
// the engine stop here and become absl::Status. LibTorch is included only behind it
// (the rest of models/), so servers and the scheduler never link it.
//
// Thread safety: one thread at a time per model.
#ifndef TANDEM_MODELS_MODEL_H_
#define TANDEM_MODELS_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/batch.h"
#include "proto/job.pb.h"

namespace tandem::models {

// One dense parameter: elements [offset, offset + size) of the flat buffer.
struct ParameterInfo {
  std::string name;
  int64_t offset = 0;
  int64_t size = 0;
  std::vector<int64_t> shape;
  Initializer initializer;  // first values depend on (job seed, name, index) only
};

// What a model is built for: the cells each table contributes and the numbers a sample has.
struct ModelInputs {
  struct TableInput {
    std::string name;
    int fields = 0;
    int dim = 0;
  };
  std::vector<TableInput> tables;  // as Batch::sparse
  int numeric = 0;
};

// Pooled rows of one table: [samples, fields, dim] floats, sample-major.
using PooledRows = absl::Span<const float>;

class DenseModel {
 public:
  virtual ~DenseModel() = default;

  virtual const std::vector<ParameterInfo>& parameters() const = 0;
  virtual int64_t parameter_count() const = 0;  // elements of the flat buffer
  // First values of the flat buffer: InitParameters, unless the model brings its own.
  virtual void FirstValues(uint64_t job_seed, absl::Span<float> flat) const;

  // What a module from a file is beside its parameters. Compiled models have none of it.
  // Of the file's contents: two models with the same are the same; empty: it is of no file.
  virtual std::string Contents() const { return ""; }
  // What changes as it trains and is no parameter, such as running means; empty: nothing does.
  virtual absl::StatusOr<std::string> State() { return std::string(); }
  // Back again. INVALID_ARGUMENT: it is that of another module.
  virtual absl::Status SetState(const std::string& state);
  // Of the random numbers that the next ForwardBackward draws (dropout).
  virtual void Seed(uint64_t /*seed*/) {}

  // Logits of a batch. `pooled[t]` belongs to table t of ModelInputs; `flat` are the parameters.
  virtual absl::Status Forward(const data::Batch& batch, absl::Span<const float> flat,
                               absl::Span<const PooledRows> pooled, absl::Span<float> logits) = 0;

  // The sum over samples of the loss (binary cross-entropy, unless a module from a file has a loss of
  // its own), and its gradients: `flat_gradient` and `pooled_gradients[t]` (every element written).
  // Logits are returned too.
  virtual absl::Status ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                                       absl::Span<const PooledRows> pooled,
                                       absl::Span<float> logits, double* loss_sum,
                                       absl::Span<float> flat_gradient,
                                       absl::Span<const absl::Span<float>> pooled_gradients) = 0;

  // Where a model on a GPU has the gradient of the last ForwardBackward: parameter_count() floats
  // in device memory, written in CUDA's default stream. `zero`: zeros instead, for a step without
  // samples. FAILED_PRECONDITION: it is on no GPU.
  virtual absl::StatusOr<float*> DeviceGradient(bool zero) = 0;
  // From now on somebody takes the gradient from there, and ForwardBackward leaves `flat_gradient`
  // as it is.
  virtual void LeaveGradientOnDevice() = 0;

  // Called from within ForwardBackward, as the backward pass goes on: elements from `first` to the
  // end of the flat gradient are final. `first` falls from call to call. Models need not call it.
  using GradientReady = std::function<void(int64_t first)>;
  void set_gradient_ready(GradientReady ready) { gradient_ready_ = std::move(ready); }

 protected:
  const GradientReady& gradient_ready() const { return gradient_ready_; }

 private:
  GradientReady gradient_ready_;
};

// Where a model computes. On a GPU a batch is one block, and results agree with those of the
// processor but for rounding.
enum class ModelDevice {
  kCpu,
  kCuda,
  kCpuAsDevice,  // what is done for a GPU, on the processor: for tests
};

// INVALID_ARGUMENT if the model does not fit its inputs (DLRM's bottom width against dim, ...), or its
// file is none of TorchScript; NOT_FOUND: there is no such file.
// FAILED_PRECONDITION: no GPU, or a LibTorch that can use none. `threads`: in one operation.
absl::StatusOr<std::unique_ptr<DenseModel>> NewDenseModel(const Model& config,
                                                          const ModelInputs& inputs, int threads,
                                                          ModelDevice device = ModelDevice::kCpu);

// Fills the flat buffer with first values. Declared here, defined without LibTorch.
void InitParameters(absl::Span<const ParameterInfo> parameters, uint64_t job_seed,
                    absl::Span<float> flat);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_MODEL_H_
