// Where the processes of one host meet before and after a kernel: a page of shared memory in which
// each rank posts what it calls. Internal to ipc_allreduce.cc.
//
// Call n has two meetings: Enter, when all ranks have posted, and Launched, when the ranks that run
// the kernels have enqueued them. Posts of call n stay readable until every rank is past Enter of
// n + 1, since a rank overwrites them at n + 2 only.
//
// Waiting spins briefly, then yields, then sleeps: ranks may outnumber cores.
#ifndef TANDEM_COLLECTIVES_CUDA_MEETING_H_
#define TANDEM_COLLECTIVES_CUDA_MEETING_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_status.h"

namespace tandem::collectives {

// A device address as another process can find it.
struct ExportedPointer {
  unsigned char handle[64] = {};  // cudaIpcMemHandle_t of the allocation
  uint64_t base = 0;              // its address in the exporting process
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

class Meeting {
 public:
  Meeting(int rank, int ranks, const IpcOptions& options)
      : rank_(rank), ranks_(ranks), options_(options) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Collective. The memory has no name once this has returned everywhere.
  DeviceStatus Open(const ByteAllGather& all_gather);

  // Begins the next call, whose deadline starts here: posts, and waits until all have posted.
  DeviceStatus Enter(const CallPost& mine);
  // What a rank posted for the current call.
  const CallPost& Of(int rank) const { return PostOf(rank, call_); }

  void SayLaunched();
  DeviceStatus WaitLaunched(int rank);

  // Tells all ranks that this one gives up; only the first word counts.
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

#endif  // TANDEM_COLLECTIVES_CUDA_MEETING_H_
