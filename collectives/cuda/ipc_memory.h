// Shares device memory and events between processes of one host (CUDA IPC), and keeps the handles.
// Internal to ipc_allreduce.cc.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_CUDA_IPC_MEMORY_H_
#define TANDEM_COLLECTIVES_CUDA_IPC_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "collectives/cuda/device_status.h"
#include "collectives/cuda/ipc_barrier.h"

namespace tandem::collectives {

// Makes handles of this process's memory for other processes.
class IpcExporter {
 public:
  // Finds the driver's functions. UNSUPPORTED if the driver lacks one.
  DeviceStatus Open();
  // Exports the allocation of a pointer, which may point anywhere in it: handles are of whole ones.
  DeviceStatus Export(const void* pointer, ExportedPointer* out);

 private:
  struct Known {
    uint64_t buffer_id = 0;
    cudaIpcMemHandle_t handle;
  };
  void* address_range_ = nullptr;      // cuMemGetAddressRange
  void* pointer_attribute_ = nullptr;  // cuPointerGetAttribute
  std::map<uint64_t, Known> known_;    // by base address
};

// Opens the memory that other processes export, each allocation once.
class IpcImporter {
 public:
  IpcImporter() = default;
  ~IpcImporter();
  IpcImporter(const IpcImporter&) = delete;
  IpcImporter& operator=(const IpcImporter&) = delete;

  // The address, in this process, of memory that `rank` has exported.
  DeviceStatus Import(int rank, const ExportedPointer& from, void** out);

 private:
  struct Opened {
    uint64_t buffer_id = 0;
    void* base = nullptr;
  };
  std::map<std::pair<int, uint64_t>, Opened> opened_;  // by rank and base address there
};

// An event that other processes can wait for in their streams.
class IpcEvent {
 public:
  IpcEvent() = default;
  ~IpcEvent();
  IpcEvent(const IpcEvent&) = delete;
  IpcEvent& operator=(const IpcEvent&) = delete;
  IpcEvent(IpcEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

  DeviceStatus Create(cudaIpcEventHandle_t* handle);
  DeviceStatus Open(const cudaIpcEventHandle_t& handle);
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_IPC_MEMORY_H_
