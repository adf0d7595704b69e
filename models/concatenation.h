// Copies blocks of columns side by side into one matrix, and copies the gradients of that matrix
// back to the blocks.
#ifndef TANDEM_MODELS_CONCATENATION_H_
#define TANDEM_MODELS_CONCATENATION_H_

#include <ATen/ATen.h>

#include <vector>

namespace tandem::models {

// Copies `parts` ([B, w_i] each) into the columns of `whole`, beginning at column `begin`. Returns
// the column after the last one.
inline int64_t CopyToColumns(const std::vector<at::Tensor>& parts, int64_t begin,
                             const at::Tensor& whole) {
  for (const at::Tensor& part : parts) {
    whole.narrow(1, begin, part.size(1)).copy_(part);
    begin += part.size(1);
  }
  return begin;
}

// The reverse: overwrites each part with its columns of `whole`.
inline void CopyFromColumns(const at::Tensor& whole, int64_t begin,
                            const std::vector<at::Tensor>& parts) {
  for (const at::Tensor& part : parts) {
    part.copy_(whole.narrow(1, begin, part.size(1)));
    begin += part.size(1);
  }
}

}  // namespace tandem::models

#endif  // TANDEM_MODELS_CONCATENATION_H_
