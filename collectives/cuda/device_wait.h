// WaitForDevice waits for work on the device until a deadline, because the work may itself wait for
// a process that has died. Internal to this folder and its users.
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_WAIT_H_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_WAIT_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_status.h"

namespace tandem::collectives {

// Returns when `query` returns cudaSuccess; `query` returns cudaErrorNotReady while the device is
// at work, as cudaEventQuery does. kDeadline: it was at work for longer than `deadline`. Calls
// `still_waiting`, if it is not empty, from time to time, and an error of it ends the wait.
inline DeviceStatus WaitForDevice(const std::function<cudaError_t()>& query,
                                  std::chrono::milliseconds deadline,
                                  const std::function<DeviceStatus()>& still_waiting) {
  constexpr int kSpins = 2000;  // most waits are as short as this
  constexpr std::chrono::microseconds kPause{50};
  constexpr std::chrono::milliseconds kAskEvery{20};
  const auto begun = std::chrono::steady_clock::now();
  auto ask = begun;
  for (int turn = 0;; ++turn) {
    const cudaError_t state = query();
    if (state != cudaErrorNotReady) return FromCuda(state, "work on the GPU");
    (void)cudaGetLastError();  // else the next launch of a kernel seems to fail
    if (turn < kSpins) continue;
    const auto now = std::chrono::steady_clock::now();
    if (still_waiting && now >= ask) {
      TANDEM_DEVICE_RETURN(still_waiting());
      ask = now + kAskEvery;
    }
    if (now - begun >= deadline) {
      return DeviceStatus(DeviceStatus::Code::kDeadline,
                          "the GPU has not finished its work within " +
                              std::to_string(deadline.count()) +
                              " ms; it may wait for the GPU of another worker");
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_WAIT_H_
