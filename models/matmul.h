// The three matrix products of a linear layer, on LibTorch tensors, computed by oneDNN.
//
// Why not at::mm: Debian's LibTorch uses the BLAS that is installed. OpenBLAS chooses its kernels
// from a list of processors. A processor that it does not know gets SSE code, which is five times
// slower, and OpenBLAS's thread pool collides with LibTorch's. oneDNN, which LibTorch links anyway,
// generates code for the processor at hand, is also faster on narrow layers, and gives the same
// bits with any BLAS.
//
// On GPUs LibTorch multiplies (`by_libtorch`), because oneDNN has no code for them. Tests use
// LibTorch's products on the CPU, too.
//
// All tensors are float and on one device. stride(1) must be 1; rows may be further apart than
// their length. By oneDNN, with one thread, the same inputs give the same bits. Errors are thrown
// as c10::Error.
#ifndef TANDEM_MODELS_MATMUL_H_
#define TANDEM_MODELS_MATMUL_H_

#include <ATen/core/Tensor.h>

namespace tandem::models {

// y = x w^T: the output of a layer with weights w [out, in].
void MultiplyTransposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                        bool by_libtorch);

// dx = dy w: the gradient of the layer's input.
void Multiply(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& dx, bool by_libtorch);

// dw += dy^T x: the gradient of the layer's weights.
void AddTransposedProduct(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dw,
                          bool by_libtorch);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_MATMUL_H_
