// DispatchDim makes row lengths known to the compiler. Loops over a row's floats then run about
// twice as fast.
#ifndef TANDEM_OPTIM_DIM_DISPATCH_H_
#define TANDEM_OPTIM_DIM_DISPATCH_H_

#include <type_traits>

namespace tandem::optim {

// Calls body(d), where d is a compile-time constant for the usual row lengths and a plain int for
// the others. The body must do the same arithmetic for both.
template <typename Body>
inline void DispatchDim(int dim, Body body) {
  switch (dim) {
    case 8:
      return body(std::integral_constant<int, 8>());
    case 16:
      return body(std::integral_constant<int, 16>());
    case 32:
      return body(std::integral_constant<int, 32>());
    case 64:
      return body(std::integral_constant<int, 64>());
    default:
      return body(dim);
  }
}

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_DIM_DISPATCH_H_
