// DeviceAllReduce: all-reduce of vectors in device memory. Each rank is a process with one GPU;
// several ranks may share a GPU.
//
//   ipc     processes of one host read and write each other's memory; nothing is staged
//   staged  through pinned host memory, segment by segment, over any host all-reduce
//
// The folder cuda/ has the collectives on GPUs. Of the rest of the project it uses only the
// arithmetic's types (collectives/types.h).
//
// Streams. All ranks call Run with the same op, type, count and scalar, in the same order. Run
// waits, in `stream`, for the work that was enqueued there before. Work that is enqueued there
// later sees the result and may change `in`. Run returns when everything is enqueued; the device
// may still be at work. For ipc that is when every rank has called Run, for staged when the last
// segment has come from the other hosts. A stream that is being captured is not supported.
//
// Bits. ipc folds in rank order: every rank gets the same bits on any devices. staged gives the
// bits of the host all-reduce.
//
// Failure. One deadline covers all waits for other ranks in one Run. The first Run that fails
// breaks the object: later calls return the same status at once. With ipc a rank that fails tells
// the others. After a failure `out` is undefined, and device work that was enqueued may wait until
// the device's owner destroys its context.
//
// Thread safety: one thread at a time. Run needs the device that was current at creation.
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

// An allgather on the host, over a channel of the caller; it blocks. Every rank gives `bytes` bytes
// at `mine`, and gets those of all ranks at `all` (ranks * bytes, in rank order). Used at creation,
// never in Run. If a rank never comes, the function must return an error.
using ByteAllGather = std::function<DeviceStatus(const void* mine, size_t bytes, void* all)>;

struct DeviceReduction {
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kF32;
  const void* in = nullptr;  // device memory, aligned to the element; may equal `out`
  void* out = nullptr;
  size_t count = 0;   // elements
  double scalar = 1;  // for kPreMulSum (kAverage multiplies by 1 / ranks)
};

class DeviceAllReduce {
 public:
  virtual ~DeviceAllReduce() = default;
  virtual const char* name() const = 0;
  virtual DeviceStatus Run(const DeviceReduction& what, cudaStream_t stream) = 0;
};

struct IpcOptions {
  std::chrono::milliseconds deadline{30000};
  // Called from time to time while Run waits for `rank`. A status other than OK ends the wait with
  // that status, so the caller can report a lost rank before the deadline.
  std::function<DeviceStatus(int rank)> still_waiting;
  // If on, the ranks that share a device let one of them run the kernel for all. If off, each rank
  // folds its own block, as ranks with a device each do. Must be the same on all ranks.
  bool one_kernel_per_device = true;
};

// Makes an all-reduce between processes of one host: 1 to 64 ranks, each its own process. Among the
// ranks that share a device the lowest runs one kernel for all. The kernel reads every rank's
// vector and writes the result to every rank, 2 * ranks * bytes in all, and no device time is lost
// by switching between processes. Different devices take a block each, and must be able to access
// each other's memory.
//
// Memory: `in` and `out` must be in allocations of cudaMalloc (memory of cudaMallocAsync and
// managed memory: UNSUPPORTED). The other ranks keep an allocation open once they have seen it, so
// repeated use costs nothing. An allocation is closed when its address belongs to another one, and
// at destruction. Free buffers after the object. UNSUPPORTED also if the devices or their driver
// cannot share memory.
DeviceStatus NewIpcAllReduce(int rank, int ranks, const ByteAllGather& all_gather,
                             const IpcOptions& options, std::unique_ptr<DeviceAllReduce>* out);

// The all-reduce on the host that staged needs, one segment at a time. Segments are numbered 0, 1,
// ... in each Run, and are the same on all ranks.
class HostSegments {
 public:
  virtual ~HostSegments() = default;
  // Begins to reduce `data` (host memory, count elements) in place over all ranks, including the
  // multiplications of kAverage and kPreMulSum. The caller must not touch `data` until Finish.
  virtual DeviceStatus Start(size_t segment, const DeviceReduction& what, void* data,
                             size_t count) = 0;
  // Waits until the segment is done; called in the order of Start.
  virtual DeviceStatus Finish(size_t segment) = 0;
  // Ends the segments that were started and are not done. Afterwards nothing touches their `data`.
  // Called once, after an error; no call follows.
  virtual void Abandon() = 0;
};

struct StagedOptions {
  size_t segment_bytes = size_t{2} << 20;  // at least one element
  // The number of pinned buffers of segment_bytes each. While one segment is copied in, others are
  // on the wire, being added, or copied back. At least 2.
  int segments_in_flight = 4;
  // How long Run waits for work of the device, which may wait for another rank's device. Run calls
  // `still_waiting`, if it is not empty, from time to time, and an error of it ends the wait.
  std::chrono::milliseconds deadline{30000};
  std::function<DeviceStatus()> still_waiting;
};

// Makes an all-reduce across hosts. `host` must outlive the object, and sets the deadlines of its
// own waits. Pinned memory is allocated here and kept; after a failed Run it stays until the end of
// the process, because the device may still use it.
DeviceStatus NewStagedAllReduce(HostSegments& host, const StagedOptions& options,
                                std::unique_ptr<DeviceAllReduce>* out);

// Makes an all-reduce across hosts with several ranks each. `within` is among the ranks of a host.
// `across` is among one rank of each host, and null on the other ranks. UNSUPPORTED unless kSum.
std::unique_ptr<DeviceAllReduce> NewTwoLevelSum(std::unique_ptr<DeviceAllReduce> within,
                                                std::unique_ptr<DeviceAllReduce> across);

// False if this build or machine has no device to use; `why` says why. Initialises CUDA, so a
// process that calls this must not fork children that use CUDA.
bool HaveDevice(std::string* why);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_ALLREDUCE_H_
