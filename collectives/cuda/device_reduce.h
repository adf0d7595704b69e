// DeviceFold: the arithmetic of collectives on device memory. One kernel reads several vectors
// once, folds them in order, and writes the result to several places. The bits are those of
// reduce.h on the same contributions (except for the payload of a NaN).
//
// Thread safety: pure functions; CUDA's rules for streams.
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_

#include <cstddef>

#include "collectives/cuda/device_status.h"
#include "collectives/cuda/stream.h"
#include "collectives/types.h"

namespace tandem::collectives {

// The most vectors that a fold can read, and the most that it can write. All pointers travel in the
// kernel's parameters.
inline constexpr int kMaxFoldVectors = 64;

// out[o][i] = (in[0][i] op in[1][i]) op ... for every o < outputs and i < count. 16-bit types are
// widened to float, folded in float and rounded once.
//   kPreMulSum: each input is first multiplied by `scalar` and rounded to the type;
//   kAverage:   the rounded sum is multiplied by `scalar`, the caller's 1 / ranks, and rounded.
struct DeviceFold {
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kF32;
  int inputs = 0;
  int outputs = 0;
  const void* in[kMaxFoldVectors] = {};
  void* out[kMaxFoldVectors] = {};  // each is equal to an input, or overlaps none
  size_t count = 0;
  double scalar = 1;
};

// Enqueues the kernel on `stream` of the current device and returns. Pointers must be aligned to
// the element size, and the device must be able to access them. For full speed all pointers must
// have the same offset from a multiple of 16 bytes; otherwise elements move one by one.
// INVALID_ARGUMENT: the number of vectors, the alignment, or an op that is not defined for the
// type. A count of 0 enqueues nothing.
DeviceStatus LaunchFold(const DeviceFold& fold, cudaStream_t stream);

// Runs the kernel's code in this thread on host memory, as `threads` device threads one after
// another. For tests without a device.
DeviceStatus FoldOnHost(const DeviceFold& fold, size_t threads);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_REDUCE_H_
