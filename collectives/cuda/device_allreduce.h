// All-reduce of vectors in device memory, each rank a process with one GPU; several may share one.
//
//   ipc     processes of one host read and write each other's memory; nothing is staged
//   staged  through pinned host memory, segment by segment, over any host all-reduce
//
// Streams. Run is called by all ranks with the same op, type, count and scalar, in the same order.
// It waits, in `stream`, for the work enqueued there before, and work enqueued there later sees the
// result and may change `in`. Run returns when everything is enqueued, which for ipc takes until
// every rank has called, and for staged until the last segment has come from the other hosts; the
// device may still be at work. A stream that is being captured is not supported.
//
// Bits. ipc folds in rank order: every rank gets the same bits, whatever the devices. staged gives
// what the host all-reduce gives.
//
// Failure. One deadline for all of a Run's waiting for others, total. The first Run that fails
// breaks the object: later ones return the same status at once. With ipc a rank that fails tells
// the others. After a failure `out` is undefined, and device work already enqueued may wait until
// the device's owner destroys its context.
//
// Thread safety: one thread at a time. The device current at creation must be current in Run.
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_ALLREDUCE_H_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_ALLREDUCE_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "collectives/cuda/device_status.h"
#include "collectives/cuda/stream.h"
#include "collectives/types.h"

namespace tandem::collectives {

// Host side, out of band, blocking: every rank gives `bytes` at `mine`, and finds those of all
// ranks at `all` (ranks * bytes, in rank order). Used at creation, never in Run. A rank missing for
// good must become an error there.
using ByteAllGather = std::function<DeviceStatus(const void* mine, size_t bytes, void* all)>;

struct DeviceReduction {
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kF32;
  const void* in = nullptr;  // device memory, a multiple of the element size; may equal `out`
  void* out = nullptr;
  size_t count = 0;   // elements
  double scalar = 1;  // of kPreMulSum; unused otherwise (kAverage multiplies by 1 / ranks)
};

class DeviceAllReduce {
 public:
  virtual ~DeviceAllReduce() = default;
  virtual const char* name() const = 0;
  virtual DeviceStatus Run(const DeviceReduction& what, cudaStream_t stream) = 0;
};

struct IpcOptions {
  std::chrono::milliseconds deadline{30000};
  // Asked now and then while Run waits for another rank: anything but OK ends the wait with it, so
  // that whoever knows of a death can say so before the deadline.
  std::function<DeviceStatus()> still_waiting;
  // Ranks that share a device let one of them run the kernel for all. Off: each rank folds its own
  // block, as ranks with a device each do. The same on all ranks.
  bool one_kernel_per_device = true;
};

// Between processes of one host; 1 to 64 ranks, each its own process. Of the ranks that share a
// device the lowest runs one kernel for all: it reads every rank's vector and writes the result to
// every rank, 2 * ranks * bytes in all, and no device time is lost in switching processes.
// Different devices take a block each; they must reach each other's memory.
//
// Memory: `in` and `out` lie in allocations of cudaMalloc (not of cudaMallocAsync or managed
// memory: UNSUPPORTED). The other ranks keep an allocation open once seen, so that repeated use
// costs nothing; it is closed when its address is seen again as another allocation, and at
// destruction. Free buffers after the object. UNSUPPORTED also where the devices, or their driver,
// have no memory to share.
DeviceStatus NewIpcAllReduce(int rank, int ranks, const ByteAllGather& all_gather,
                             const IpcOptions& options, std::unique_ptr<DeviceAllReduce>* out);

// All-reduce on the host of one segment at a time, as staged needs it. Segments are numbered
// 0, 1, ... in each Run and are the same on all ranks.
class HostSegments {
 public:
  virtual ~HostSegments() = default;
  // Begins to reduce `data` (host memory, count elements) in place, over all ranks. kAverage and
  // kPreMulSum included. It stays untouched by the caller until Finish.
  virtual DeviceStatus Start(size_t segment, const DeviceReduction& what, void* data,
                             size_t count) = 0;
  // Waits until that segment is done; called in the order of Start.
  virtual DeviceStatus Finish(size_t segment) = 0;
};

struct StagedOptions {
  size_t segment_bytes = size_t{2} << 20;  // at least one element
  // Pinned buffers of segment_bytes each. While one segment is copied in, others are on the wire,
  // being added, or copied back. At least 2.
  int segments_in_flight = 4;
};

// Across hosts. `host` outlives the object. Deadlines are those of `host`. Pinned memory is taken
// here and kept.
DeviceStatus NewStagedAllReduce(HostSegments& host, const StagedOptions& options,
                                std::unique_ptr<DeviceAllReduce>* out);

// Across hosts with several ranks each: `within` is among the ranks of a host, `across` among one
// rank of each host, null on the others. kSum only, else UNSUPPORTED.
std::unique_ptr<DeviceAllReduce> NewTwoLevelSum(std::unique_ptr<DeviceAllReduce> within,
                                                std::unique_ptr<DeviceAllReduce> across);

// False, and why, if this build or machine has no device to use. Initialises CUDA: a process that
// asks must not fork children that use CUDA.
bool HaveDevice(std::string* why);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_ALLREDUCE_H_
