#include "models/matmul.h"

#include <ATen/ATen.h>
#include <dnnl.h>

namespace tandem::models {
namespace {

void GemmOfLibTorch(char op_a, char op_b, const at::Tensor& a, const at::Tensor& b, float beta,
                    const at::Tensor& c) {
  at::Tensor out = c;
  at::addmm_out(out, c, op_a == 'T' ? a.t() : a, op_b == 'T' ? b.t() : b, beta, 1.0f);
}

// c [m, n] = op(a) op(b) + beta c, all row-major. k is the length of the inner products.
void Gemm(char op_a, char op_b, int64_t k, const at::Tensor& a, const at::Tensor& b, float beta,
          const at::Tensor& c, bool by_libtorch) {
  if (k == 0 || c.numel() == 0) {  // a layer without inputs, which oneDNN refuses
    if (beta == 0.0f) c.zero_();
    return;
  }
  if (by_libtorch) return GemmOfLibTorch(op_a, op_b, a, b, beta, c);
  const dnnl_status_t status =
      dnnl_sgemm(op_a, op_b, c.size(0), c.size(1), k, 1.0f, a.data_ptr<float>(), a.stride(0),
                 b.data_ptr<float>(), b.stride(0), beta, c.data_ptr<float>(), c.stride(0));
  TORCH_CHECK(status == dnnl_success, "matrix product of ", a.sizes(), " and ", b.sizes(), " into ",
              c.sizes(), " failed with oneDNN status ", static_cast<int>(status));
}

}  // namespace

void MultiplyTransposed(const at::Tensor& x, const at::Tensor& w, const at::Tensor& y,
                        bool by_libtorch) {
  Gemm('N', 'T', w.size(1), x, w, 0.0f, y, by_libtorch);
}

void Multiply(const at::Tensor& dy, const at::Tensor& w, const at::Tensor& dx, bool by_libtorch) {
  Gemm('N', 'N', w.size(0), dy, w, 0.0f, dx, by_libtorch);
}

void AddTransposedProduct(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& dw,
                          bool by_libtorch) {
  Gemm('T', 'N', x.size(0), dy, x, 1.0f, dw, by_libtorch);
}

}  // namespace tandem::models
