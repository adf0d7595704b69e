#include "worker/dense/trial_sum.h"

#include <cstddef>

#include "absl/strings/str_format.h"

namespace tandem::worker {
namespace {

// Primes, so that an element of another rank or at another index differs.
constexpr int64_t kMax = 1021, kStride = 37;

int64_t Element(int rank, int64_t index) {
  return 1 + (index + kStride * rank) * (2 * rank + 3) % kMax;
}

}  // namespace

std::vector<float> TrialVector(int rank, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[static_cast<size_t>(i)] = static_cast<float>(Element(rank, i));
  }
  return values;
}

absl::Status CheckTrialSum(absl::Span<const float> sum, int ranks) {
  for (size_t i = 0; i < sum.size(); ++i) {
    int64_t expected = 0;
    for (int r = 0; r < ranks; ++r) expected += Element(r, static_cast<int64_t>(i));
    if (sum[i] == static_cast<float>(expected)) continue;
    return absl::DataLossError(
        absl::StrFormat("a trial sum is wrong: element %u of %u is %g, expected %d", i, sum.size(),
                        sum[i], expected));
  }
  return absl::OkStatus();
}

}  // namespace tandem::worker
