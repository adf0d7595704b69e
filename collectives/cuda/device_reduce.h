// The arithmetic of collectives on device memory: one kernel that reads several vectors once, folds
// them in order and writes the result to several places. The bits are those of the functions in
// reduce.h on the same contributions (but for the payload of a NaN).
//
// Thread safety: pure functions; CUDA's rules for streams.
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_

#include <cstddef>

#include "collectives/cuda/device_status.h"
#include "collectives/cuda/stream.h"
#include "collectives/types.h"

namespace tandem::collectives {

// Vectors a fold can read, and write. All pointers travel in the kernel's parameters.
inline constexpr int kMaxFoldVectors = 64;

// out[o][i] = (in[0][i] op in[1][i]) op ... for every o < outputs and i < count. 16-bit types are
// widened to float, folded there and rounded once.
//   kPreMulSum: each input is first multiplied by `scalar` and rounded to the type;
//   kAverage:   the rounded sum is multiplied by `scalar`, the caller's 1 / ranks, and rounded.
struct DeviceFold {
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kF32;
  int inputs = 0;
  int outputs = 0;
  const void* in[kMaxFoldVectors] = {};
  void* out[kMaxFoldVectors] = {};  // each equal to an input, or apart from all of them
  size_t count = 0;
  double scalar = 1;
};

// Enqueues the kernel on `stream` of the current device and returns. Pointers must be multiples of
// the element size that the device can reach; the full speed needs all of them to lie alike
// relative to 16 bytes (element by element otherwise). INVALID_ARGUMENT: number of vectors,
// alignment, op not defined for the type. A count of 0 enqueues nothing.
DeviceStatus LaunchFold(const DeviceFold& fold, cudaStream_t stream);

// The kernel's code run by this thread on host memory, as `threads` device threads one after
// another: what can be tested without a device.
DeviceStatus FoldOnHost(const DeviceFold& fold, size_t threads);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_
