// The GPU checks as tests, each in processes of its own; without a device all but those of the
// kernel's code on the host are skipped.
#include <ostream>
#include <string>

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

}  // namespace
}  // namespace tandem
