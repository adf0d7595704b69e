#include "collectives/cuda/ipc_memory.h"

#include <cuda.h>

#include <cstring>
#include <string>

#include "collectives/cuda/cuda_call.h"

namespace tandem::collectives {
namespace {

using Code = DeviceStatus::Code;
using AddressRange = CUresult (*)(CUdeviceptr* base, size_t* size, CUdeviceptr pointer);
using PointerAttribute = CUresult (*)(void* data, CUpointer_attribute attribute,
                                      CUdeviceptr pointer);

// Looks the function up in the runtime, so that nothing links against the driver, which build
// machines do not have.
DeviceStatus DriverFunction(const char* name, void** out) {
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  TANDEM_CUDA_RETURN(
      cudaGetDriverEntryPointByVersion(name, out, 12000, cudaEnableDefault, &result));
#else
  TANDEM_CUDA_RETURN(cudaGetDriverEntryPoint(name, out, cudaEnableDefault, &result));
#endif
  if (result == cudaDriverEntryPointSuccess && *out != nullptr) return DeviceStatus();
  return DeviceStatus(Code::kUnsupported, std::string("the CUDA driver has no ") + name);
}

}  // namespace

DeviceStatus IpcExporter::Open() {
  TANDEM_DEVICE_RETURN(DriverFunction("cuMemGetAddressRange", &address_range_));
  return DriverFunction("cuPointerGetAttribute", &pointer_attribute_);
}

DeviceStatus IpcExporter::Export(const void* pointer, ExportedPointer* out) {
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  CUdeviceptr base = 0;
  size_t size = 0;
  if (reinterpret_cast<AddressRange>(address_range_)(&base, &size, address) != CUDA_SUCCESS) {
    return DeviceStatus(Code::kInvalidArgument, "all-reduce: not an address in device memory");
  }
  unsigned long long buffer_id = 0;
  if (reinterpret_cast<PointerAttribute>(pointer_attribute_)(
          &buffer_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) != CUDA_SUCCESS) {
    return DeviceStatus(Code::kDevice, "cuPointerGetAttribute: no buffer id");
  }
  auto known = known_.find(base);
  if (known == known_.end() || known->second.buffer_id != buffer_id) {
    Known fresh;
    fresh.buffer_id = buffer_id;
    const cudaError_t error =
        cudaIpcGetMemHandle(&fresh.handle, reinterpret_cast<void*>(static_cast<uintptr_t>(base)));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      return DeviceStatus(Code::kUnsupported,
                          std::string("cudaIpcGetMemHandle: ") + cudaGetErrorString(error) +
                              " (memory of cudaMallocAsync and managed memory cannot be shared)");
    }
    known = known_.insert_or_assign(base, fresh).first;
  }
  static_assert(sizeof(out->handle) == sizeof(known->second.handle), "64 bytes by CUDA's word");
  std::memcpy(out->handle, &known->second.handle, sizeof(out->handle));
  out->base = base;
  out->buffer_id = buffer_id;
  out->offset = address - base;
  return DeviceStatus();
}

IpcImporter::~IpcImporter() {
  for (const auto& [key, opened] : opened_) (void)cudaIpcCloseMemHandle(opened.base);
}

DeviceStatus IpcImporter::Import(int rank, const ExportedPointer& from, void** out) {
  Opened& opened = opened_[{rank, from.base}];
  if (opened.base != nullptr && opened.buffer_id != from.buffer_id) {  // freed there since
    void* const stale = std::exchange(opened.base, nullptr);
    TANDEM_CUDA_RETURN(cudaIpcCloseMemHandle(stale));
  }
  if (opened.base == nullptr) {
    cudaIpcMemHandle_t handle;
    std::memcpy(&handle, from.handle, sizeof(handle));
    TANDEM_CUDA_RETURN(cudaIpcOpenMemHandle(&opened.base, handle, cudaIpcMemLazyEnablePeerAccess));
    opened.buffer_id = from.buffer_id;
  }
  *out = static_cast<unsigned char*>(opened.base) + from.offset;
  return DeviceStatus();
}

IpcEvent::~IpcEvent() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
}

DeviceStatus IpcEvent::Create(cudaIpcEventHandle_t* handle) {
  TANDEM_CUDA_RETURN(
      cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventInterprocess));
  return TANDEM_CUDA_STATUS(cudaIpcGetEventHandle(handle, event_));
}

DeviceStatus IpcEvent::Open(const cudaIpcEventHandle_t& handle) {
  return TANDEM_CUDA_STATUS(cudaIpcOpenEventHandle(&event_, handle));
}

}  // namespace tandem::collectives
