// main() of every test program: GoogleTest with one flag of our own, --seed=N, and one closing word:
// a program whose tests were all skipped says so, and CTest shows it as skipped.
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
}  // namespace tandem

int main(int argc, char** argv) {
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
