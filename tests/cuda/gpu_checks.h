// What must hold on a machine with a CUDA device, as plain functions: run by GoogleTest in the
// build (device_test.cc), and by a program that needs nothing but the CUDA toolkit (gpu_main.cc).
#ifndef TANDEM_TESTS_CUDA_GPU_CHECKS_H_
#define TANDEM_TESTS_CUDA_GPU_CHECKS_H_

#include <string>
#include <vector>

namespace tandem {

struct GpuCheckOptions {
  unsigned long long seed = 1;
  // Fewer and smaller vectors, for compute-sanitizer, which is slow.
  bool small = false;
};

struct GpuCheck {
  const char* name;
  const char* shows;
  bool needs_device;
  // Empty: passed. kSkip (processes.h) and a reason: skipped. Else what is wrong.
  std::string (*run)(const GpuCheckOptions& options);
};

const std::vector<GpuCheck>& GpuChecks();

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_GPU_CHECKS_H_
