// The interface of a dense model, which is the border to LibTorch. Rows come in and gradients go
// out as plain spans. Exceptions of LibTorch stop here and become absl::Status. Only the rest of
// models/ includes LibTorch, so servers and the scheduler never link it.
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
  Initializer initializer;  // initial values depend only on (job seed, name, index)
};

// The inputs that a model is built for: the pooled embeddings of each table, one for each field,
// and the numbers of a sample.
struct ModelInputs {
  struct TableInput {
    std::string name;
    int fields = 0;
    int dim = 0;
  };
  std::vector<TableInput> tables;  // in the order of Batch::sparse
  int numeric = 0;
};

// The pooled rows of one table: [samples, fields, dim] floats, sample-major.
using PooledRows = absl::Span<const float>;

class DenseModel {
 public:
  virtual ~DenseModel() = default;

  virtual const std::vector<ParameterInfo>& parameters() const = 0;
  virtual int64_t parameter_count() const = 0;  // elements of the flat buffer
  // Fills the flat buffer with initial values: those of InitParameters, unless the model brings its
  // own.
  virtual void InitialValues(uint64_t job_seed, absl::Span<float> flat) const;

  // The next functions serve modules from files, which have more than parameters; compiled models
  // need none of them. Contents: a hash of the file. Models with equal contents are the same.
  // Empty: the model comes from no file.
  virtual std::string Contents() const { return ""; }
  // State that changes during training and is no parameter, such as running means. Empty: there is
  // none.
  virtual absl::StatusOr<std::string> State() { return std::string(); }
  // Restores the result of State. INVALID_ARGUMENT: the state belongs to another module.
  virtual absl::Status SetState(const std::string& state);
  // Sets the seed of the random numbers that the next ForwardBackward draws (dropout).
  virtual void Seed(uint64_t /*seed*/) {}

  // Computes the logits of a batch. `pooled[t]` belongs to table t of ModelInputs; `flat` holds the
  // parameters.
  virtual absl::Status Forward(const data::Batch& batch, absl::Span<const float> flat,
                               absl::Span<const PooledRows> pooled, absl::Span<float> logits) = 0;

  // Computes the sum over samples of the loss and its gradients: `flat_gradient` and
  // `pooled_gradients[t]` (every element is written). Also returns the logits. The loss is binary
  // cross-entropy, unless a module from a file has a loss of its own.
  virtual absl::Status ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                                       absl::Span<const PooledRows> pooled,
                                       absl::Span<float> logits, double* loss_sum,
                                       absl::Span<float> flat_gradient,
                                       absl::Span<const absl::Span<float>> pooled_gradients) = 0;

  // For a model on a GPU: the gradient of the last ForwardBackward, as parameter_count() floats in
  // device memory that are written in CUDA's default stream. `zero`: fill them with zeros instead,
  // for a step without samples. FAILED_PRECONDITION: the model is not on a GPU.
  virtual absl::StatusOr<float*> DeviceGradient(bool zero) = 0;
  // From now on the caller takes the gradient from DeviceGradient, and ForwardBackward does not
  // write `flat_gradient`.
  virtual void LeaveGradientOnDevice() = 0;

  // A function that ForwardBackward calls while the backward pass proceeds: the elements from
  // `first` to the end of the flat gradient are final. `first` falls from call to call. Models need
  // not call it.
  using GradientReady = std::function<void(int64_t first)>;
  void set_gradient_ready(GradientReady ready) { gradient_ready_ = std::move(ready); }

 protected:
  const GradientReady& gradient_ready() const { return gradient_ready_; }

 private:
  GradientReady gradient_ready_;
};

// The GPUs that LibTorch can use in this process (CUDA_VISIBLE_DEVICES limits them); 0: none.
int CudaDevices();

// Where a model computes. On a GPU a batch is one block. Results agree with those of the processor
// except for rounding.
enum class ModelDevice {
  kCpu,
  kCuda,
  kCpuAsDevice,  // runs the code for GPUs on the processor: for tests
};

// Constructs the model of a job. INVALID_ARGUMENT: the model does not fit its inputs (DLRM's bottom
// width against dim, ...), or its file is not a TorchScript file. NOT_FOUND: the file does not
// exist. FAILED_PRECONDITION: there is no GPU, or LibTorch cannot use it. `threads`: threads within
// one operation. `gpu`: for kCuda, which of CudaDevices().
absl::StatusOr<std::unique_ptr<DenseModel>> NewDenseModel(const Model& config,
                                                          const ModelInputs& inputs, int threads,
                                                          ModelDevice device = ModelDevice::kCpu,
                                                          int gpu = 0);

// Fills the flat buffer with initial values. Declared here and defined without LibTorch.
void InitParameters(absl::Span<const ParameterInfo> parameters, uint64_t job_seed,
                    absl::Span<float> flat);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_MODEL_H_
