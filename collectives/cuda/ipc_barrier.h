// IpcBarrier: a barrier between the processes of one host before and after a kernel, in a page of
// shared memory where each rank posts its call. Internal to ipc_allreduce.cc.
//
// Call n has two barriers. Enter ends when all ranks have posted their calls. Launched ends when
// the ranks that run kernels have enqueued them. The posts of call n stay readable until every rank
// has passed Enter of call n + 1, because a rank overwrites them only at call n + 2.
//
// A wait spins briefly, then yields, then sleeps, because there may be more ranks than cores.
#ifndef TANDEM_COLLECTIVES_CUDA_IPC_BARRIER_H_
#define TANDEM_COLLECTIVES_CUDA_IPC_BARRIER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_status.h"

namespace tandem::collectives {

// A device address in a form that another process can open.
struct ExportedPointer {
  unsigned char handle[64] = {};  // cudaIpcMemHandle_t of the allocation
  uint64_t base = 0;              // address of the allocation in the exporting process
  uint64_t buffer_id = 0;         // never used twice in that process
  uint64_t offset = 0;            // bytes from base
};

struct CallPost {
  ReduceOp op = ReduceOp::kSum;
  DataType type = DataType::kF32;
  uint64_t count = 0;
  double scalar = 1;
  ExportedPointer in, out;
};

class IpcBarrier {
 public:
  IpcBarrier(int rank, int ranks, const IpcOptions& options)
      : rank_(rank), ranks_(ranks), options_(options) {}
  ~IpcBarrier();
  IpcBarrier(const IpcBarrier&) = delete;
  IpcBarrier& operator=(const IpcBarrier&) = delete;

  // All ranks call it. When it has returned on all ranks, the memory has no name any more.
  DeviceStatus Open(const ByteAllGather& all_gather);

  // Begins the next call and its deadline: posts the call, and waits until all ranks have posted.
  DeviceStatus Enter(const CallPost& mine);
  // The post of a rank for the current call.
  const CallPost& Of(int rank) const { return PostOf(rank, call_); }

  void SayLaunched();
  DeviceStatus WaitLaunched(int rank);

  // Tells all ranks that this rank gives up. Only the first failure of any rank counts.
  void Fail(const DeviceStatus& status);

 private:
  struct Slot;
  struct Page;

  const CallPost& PostOf(int rank, uint64_t call) const;
  DeviceStatus WaitFor(const std::atomic<uint64_t>& counter, int rank, const char* what);
  DeviceStatus Broken() const;
  DeviceStatus Create(std::string* name);
  DeviceStatus Map(int file);

  const int rank_;
  const int ranks_;
  const IpcOptions options_;
  Page* page_ = nullptr;
  size_t bytes_ = 0;
  uint64_t call_ = 0;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_IPC_BARRIER_H_
