// Speed of collectives on a CUDA device, each beside what it is measured against in the same run,
// repetitions of both in turn.
//
//   copy       a device-to-device copy: 2 * bytes / time, the yardstick
//   fold       the kernel alone, p vectors in, p out: 2 * p * bytes / time
//   ipc        all-reduce between p processes sharing the device: 2 * p * bytes / time
//   staged     all-reduce of p threads through the host, against copy - reduce - copy of the whole
#ifndef TANDEM_TESTS_CUDA_GPU_BENCH_H_
#define TANDEM_TESTS_CUDA_GPU_BENCH_H_

#include <cstddef>
#include <string>
#include <vector>

namespace tandem {

struct GpuFigure {
  std::string name;
  double value = 0;
  std::string unit;
  double spread = 0;    // (largest - smallest) / median over the repetitions
  double at_least = 0;  // 0: no bar
  std::string note;
};

struct GpuBenchOptions {
  size_t device_bytes = size_t{256} << 20;
  size_t staged_bytes = size_t{64} << 20;
  int repetitions = 21;
  bool bars = true;  // off where sizes are too small for them to mean anything
};

// Appends to `figures`. Empty if all went well and every result was right.
std::string RunGpuBench(const GpuBenchOptions& options, std::vector<GpuFigure>* figures);

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_GPU_BENCH_H_
