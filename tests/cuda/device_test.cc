// The GPU checks as tests, each in processes of its own; without a device all but those of the
// kernel's code on the host are skipped.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <ostream>
#include <string>
#include <vector>

#include "collectives/cuda/device_wait.h"
#include "gtest/gtest.h"
#include "tests/cuda/gpu_checks.h"
#include "tests/cuda/processes.h"
#include "tests/test_seed.h"

namespace tandem {

void PrintTo(const GpuCheck& check, std::ostream* out) { *out << check.name; }

namespace {

class DeviceTest : public ::testing::TestWithParam<GpuCheck> {};

TEST_P(DeviceTest, Holds) {
  GpuCheckOptions options;
  options.seed = TestSeed();
  const std::string wrong = GetParam().run(options);
  if (wrong.rfind(kSkip, 0) == 0) GTEST_SKIP() << wrong.substr(sizeof(kSkip) - 1);
  EXPECT_EQ(wrong, "") << GetParam().shows << "; rerun with --seed=" << options.seed;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceTest, ::testing::ValuesIn(GpuChecks()),
                         [](const auto& param) { return std::string(param.param.name); });

// A device that is at work for some turns; -1: for ever.
std::function<cudaError_t()> BusyDevice(int turns, cudaError_t then) {
  return [turns, then]() mutable {
    if (turns == 0) return then;
    if (turns > 0) --turns;
    return cudaErrorNotReady;
  };
}

TEST(WaitForDeviceTest, EndsWithTheWorkOrItsErrorOrAtTheDeadline) {
  using collectives::DeviceStatus;
  using collectives::WaitForDevice;
  const std::chrono::milliseconds day = std::chrono::hours(24), soon{10};
  for (const int turns : {0, 1, 2500}) {
    EXPECT_TRUE(WaitForDevice(BusyDevice(turns, cudaSuccess), day, nullptr).ok()) << turns;
  }
  const DeviceStatus failed = WaitForDevice(BusyDevice(3, cudaErrorIllegalAddress), day, nullptr);
  EXPECT_EQ(failed.code(), DeviceStatus::Code::kDevice) << failed.message();
  const DeviceStatus late = WaitForDevice(BusyDevice(-1, cudaSuccess), soon, nullptr);
  EXPECT_EQ(late.code(), DeviceStatus::Code::kDeadline) << late.message();
  // A worker is lost before the deadline.
  const DeviceStatus lost = WaitForDevice(BusyDevice(-1, cudaSuccess), day, [] {
    return DeviceStatus(DeviceStatus::Code::kPeer, "worker 1 is lost");
  });
  EXPECT_EQ(lost.message(), "worker 1 is lost");
}

// One piece of device code in this program: machine code, or PTX for the driver to compile.
struct DeviceCode {
  bool ptx = false;
  int capability = 0;  // 80: 8.0
};

// Reads nvcc's containers of device code, as cuobjdump does, which not every toolkit has.
std::vector<DeviceCode> CodeInThisProgram() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const auto read = [&](size_t at, auto value) {
    std::memcpy(&value, bytes.data() + at, sizeof(value));
    return value;
  };
  std::vector<DeviceCode> found;
  const char head[] = "\x50\xED\x55\xBA\x01\0\x10";  // magic, version, size of the head
  const std::string magic(head, sizeof(head));
  for (size_t at = 0; (at = bytes.find(magic, at)) != std::string::npos; at += magic.size()) {
    const size_t begin = at + 16;
    const size_t end = begin + read(at + 8, uint64_t{});
    for (size_t entry = begin; entry < end && end <= bytes.size();) {
      found.push_back({read(entry, uint16_t{}) == 1, read(entry + 28, int32_t{})});
      entry += read(entry + 4, uint32_t{}) + read(entry + 8, uint64_t{});
    }
  }
  return found;
}

TEST(DeviceCodeTest, EveryDeviceSinceTuringHasCode) {
  const std::vector<DeviceCode> code = CodeInThisProgram();
  for (const int device : {75, 80, 86, 89, 90, 100, 103, 120}) {
    bool runs = false;
    for (const DeviceCode& one : code) {
      const bool same_major = one.capability / 10 == device / 10;
      runs |= one.capability <= device && (one.ptx || same_major);
    }
    EXPECT_TRUE(runs) << "no code for a device of capability " << device
                      << "; is TANDEM_CUDA_ARCH set? (cmake -U TANDEM_CUDA_ARCH build)";
  }
}

}  // namespace
}  // namespace tandem
