// Owners of device memory and streams for tests and benchmarks. A CUDA error throws; the check that
// threw has failed (Guarded).
#ifndef TANDEM_TESTS_CUDA_DEVICE_MEMORY_H_
#define TANDEM_TESTS_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "collectives/cuda/cuda_call.h"
#include "tests/cuda/gpu_data.h"

namespace tandem {

inline void Require(const collectives::DeviceStatus& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}
#define TANDEM_CUDA_REQUIRE(call) ::tandem::Require(TANDEM_CUDA_STATUS(call))

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t bytes) : bytes_(bytes) {
    TANDEM_CUDA_REQUIRE(cudaMalloc(&data_, bytes > 0 ? bytes : 1));
  }
  ~DeviceBuffer() { (void)cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

class Stream {
 public:
  Stream() { TANDEM_CUDA_REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void Wait() const { TANDEM_CUDA_REQUIRE(cudaStreamSynchronize(stream_)); }

  void Up(void* to, const Bytes& from) const {
    if (from.empty()) return;
    TANDEM_CUDA_REQUIRE(
        cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
  }
  // Waits.
  Bytes Down(const void* from, size_t bytes) const {
    Bytes out(bytes);
    if (bytes > 0) {
      TANDEM_CUDA_REQUIRE(
          cudaMemcpyAsync(out.data(), from, bytes, cudaMemcpyDeviceToHost, stream_));
    }
    Wait();
    return out;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// Runs a function that returns what is wrong; what it throws is wrong, too.
template <class Function>
std::string Guarded(const Function& function) {
  try {
    return function();
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_DEVICE_MEMORY_H_
