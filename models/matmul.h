// The three matrix products of a linear layer, on LibTorch tensors, through oneDNN.
//
// Why not at::mm: Debian's LibTorch takes its products from whatever BLAS is installed. OpenBLAS
// picks its kernels from a list of processors; one it does not know gets SSE code, five times
// slower, and its thread pool collides with LibTorch's. oneDNN, which LibTorch links anyway,
// generates code for what the processor can do, is faster on the narrow layers too, and gives the
// same bits whichever BLAS is installed.
//
// All tensors are float, on the CPU (or all on one GPU, where LibTorch multiplies), with stride(1)
// == 1; rows may be further apart than their length. With one thread the same inputs give the same
// bits. Errors are c10::Error.
#ifndef TANDEM_MODELS_MATMUL_H_
#define TANDEM_MODELS_MATMUL_H_

#include <ATen/core/Tensor.h>

namespace tandem::models {

// y = x w^T: the output of a layer with weights w [out, in].
void MultiplyTransposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y);

// dx = dy w: the gradient of its input.
void Multiply(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& dx);

// dw += dy^T x: the gradient of its weights.
void AddTransposedProduct(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dw);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_MATMUL_H_
