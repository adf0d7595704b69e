// TorchModel is the base class of the compiled models. It has everything that they share: the
// checks at the border, tensors that are views of the caller's spans, the loss, the conversion of
// exceptions to Status, and the number of threads. A model adds its parameters and two functions:
// logits, and their gradients.
//
// A batch is computed in blocks of kBlockSamples samples. The activations of a block stay in the
// processor's cache, and memory does not grow with the batch. Gradients add up over the blocks.
//
// On a GPU a batch is one block. RunOnDevice copies the inputs to the GPU and the results back; the
// gradient of the parameters may stay there (models/model.h). The models themselves are written
// once, with tensors, for both devices.
#ifndef TANDEM_MODELS_TORCH_MODEL_H_
#define TANDEM_MODELS_TORCH_MODEL_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "models/model.h"
#include "models/parameter_layout.h"

namespace tandem::models {

class TorchModel : public DenseModel {
 public:
  const std::vector<ParameterInfo>& parameters() const final { return layout_.parameters(); }
  int64_t parameter_count() const final { return layout_.size(); }

  absl::Status Forward(const data::Batch& batch, absl::Span<const float> flat,
                       absl::Span<const PooledRows> pooled, absl::Span<float> logits) final;

  absl::Status ForwardBackward(const data::Batch& batch, absl::Span<const float> flat,
                               absl::Span<const PooledRows> pooled, absl::Span<float> logits,
                               double* loss_sum, absl::Span<float> flat_gradient,
                               absl::Span<const absl::Span<float>> pooled_gradients) final;

  absl::StatusOr<float*> DeviceGradient(bool zero) final;
  void LeaveGradientOnDevice() final { gradient_stays_ = true; }

  // Call before the first computation. kCPU: use the code for GPUs on the processor.
  void ComputeOn(at::Device device) { layout_.ComputeOn(device); }

 protected:
  // One block of samples. All tensors are views of the caller's memory, or are on the device.
  struct Block {
    int64_t samples = 0;
    bool last = false;                         // last block of the batch
    at::Tensor numbers;                        // [B, D]
    std::vector<at::Tensor> cells;             // pooled embeddings, per table [B, fields * dim]
    std::vector<at::Tensor> pooled_gradients;  // the same shapes; empty in Forward
  };

  // `name` appears in error messages. `threads`: intra-op threads of LibTorch in this process.
  TorchModel(std::string name, const ModelInputs& inputs, int threads);

  // Writes logits [B, 1].
  virtual void Logits(const float* flat, const Block& block, const at::Tensor& logits) = 0;

  // Called after Logits of the same block. `d_logits` [B, 1] is the gradient of the loss and may be
  // overwritten. Adds to `flat_gradient` and writes every element of block.pooled_gradients.
  virtual void Gradients(const float* flat, const Block& block, const at::Tensor& logits,
                         const at::Tensor& d_logits, float* flat_gradient) = 0;

  // KeptRows for a block.
  at::Tensor Kept(const Block& block, int64_t width, at::Tensor* storage) const;
  bool on_device() const { return layout_.on_device(); }

  // The callback for LinearStack::Backward. It does nothing before the last block, since gradients
  // are not final until then.
  const GradientReady& ReadyAfter(const Block& block) const {
    static const GradientReady kNotYet;
    return block.last ? gradient_ready() : kNotYet;
  }

  const ModelInputs& inputs() const { return inputs_; }
  ParameterLayout* layout() { return &layout_; }

 private:
  struct Call;  // the spans of one call

  absl::Status Check(const Call& call) const;
  absl::Status Run(const Call& call);
  void RunBlocks(const Call& call);
  void ViewBlock(const Call& call, int64_t begin, int64_t samples);
  void RunOnDevice(const Call& call);
  float* DeviceGradientOrThrow(bool zero);
  void CopyBlockToDevice();
  at::Tensor ToDevice(const at::Tensor& host) const;
  at::Tensor ToHost(const at::Tensor& values) const;

  const std::string name_;
  const ModelInputs inputs_;
  const int threads_;
  ParameterLayout layout_;
  Block block_;  // reused for the memory of its vectors
  at::Tensor d_logits_;
  bool gradient_stays_ = false;
  at::Tensor device_gradient_;  // [parameters], zeros before the first batch
};

}  // namespace tandem::models

#endif  // TANDEM_MODELS_TORCH_MODEL_H_
