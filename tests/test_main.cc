// main() of every test program: GoogleTest with one flag of our own, --seed=N, and one closing
// word: a program whose tests were all skipped says so, and CTest shows it as skipped.
//
// A program that CMake marks as SAMPLED n runs one test of n where TANDEM_DRAW, a number, says
// which; ./check takes it from the commit. Without TANDEM_DRAW a program runs all of its tests.
#include <cstdlib>
#include <iostream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {
uint64_t test_seed = 1;  // set once in main, before any test runs
}  // namespace
uint64_t TestSeed() { return test_seed; }

// GoogleTest's own sharding does the rest. CMake sets TANDEM_SAMPLED.
void SampleTests() {
  const char* const sampled = std::getenv("TANDEM_SAMPLED");
  const char* const draw = std::getenv("TANDEM_DRAW");
  if (sampled == nullptr || draw == nullptr) return;
  const uint64_t shard = std::stoull(draw) % std::stoull(sampled);
  setenv("GTEST_TOTAL_SHARDS", sampled, 1);
  setenv("GTEST_SHARD_INDEX", std::to_string(shard).c_str(), 1);
}
}  // namespace tandem

int main(int argc, char** argv) {
  tandem::SampleTests();
  ::testing::InitGoogleMock(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--seed=", 0) == 0) tandem::test_seed = std::stoull(arg.substr(7));
  }
  std::cout << "seed " << tandem::test_seed << std::endl;
  const int result = RUN_ALL_TESTS();
  const auto& unit = *::testing::UnitTest::GetInstance();
  if (result == 0 && unit.skipped_test_count() > 0 && unit.successful_test_count() == 0) {
    std::cout << "SKIPPED ENTIRELY" << std::endl;
  }
  return result;
}
