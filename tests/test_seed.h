// The seed of this test run: 1 unless --seed=N says otherwise. Tests print it when they fail.
#ifndef TANDEM_TESTS_TEST_SEED_H_
#define TANDEM_TESTS_TEST_SEED_H_

#include <cstdint>

namespace tandem {
uint64_t TestSeed();
}  // namespace tandem

#endif  // TANDEM_TESTS_TEST_SEED_H_
