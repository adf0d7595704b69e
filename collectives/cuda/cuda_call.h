// Turns results of CUDA runtime calls into DeviceStatus. Internal to this folder and its tests.
#ifndef TANDEM_COLLECTIVES_CUDA_CUDA_CALL_H_
#define TANDEM_COLLECTIVES_CUDA_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <string>

#include "collectives/cuda/device_status.h"

namespace tandem::collectives {

inline DeviceStatus FromCuda(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return DeviceStatus();
  const auto code = error == cudaErrorNotSupported ? DeviceStatus::Code::kUnsupported
                                                   : DeviceStatus::Code::kDevice;
  return DeviceStatus(
      code, std::string(call) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

}  // namespace tandem::collectives

#define TANDEM_CUDA_STATUS(call) ::tandem::collectives::FromCuda((call), #call)
#define TANDEM_CUDA_RETURN(call) TANDEM_DEVICE_RETURN(TANDEM_CUDA_STATUS(call))

#endif  // TANDEM_COLLECTIVES_CUDA_CUDA_CALL_H_
