#include "worker/dense/replica_digests.h"

#include <xxhash.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::worker {

uint64_t DigestOf(absl::Span<const float> values) {
  return XXH3_64bits(values.data(), values.size() * sizeof(float));
}

absl::Status CompareReplicas(absl::Span<const uint64_t> digests, int rank, int64_t step) {
  uint64_t common = 0;
  std::ptrdiff_t most = 0;
  for (const uint64_t digest : digests) {
    const std::ptrdiff_t have = std::count(digests.begin(), digests.end(), digest);
    if (have <= most) continue;
    most = have;
    common = digest;
  }
  const auto all = static_cast<std::ptrdiff_t>(digests.size());
  if (most == all) return absl::OkStatus();
  const bool known = 2 * most > all;
  std::vector<size_t> at_fault;
  for (size_t r = 0; r < digests.size(); ++r) {
    if (!known || digests[r] != common) at_fault.push_back(r);
  }
  const std::string text = absl::StrCat(
      "dense parameters of ", at_fault.size() == 1 ? "worker " : "workers ",
      absl::StrJoin(at_fault, ", "), known ? " differ from those of the others" : " differ",
      " at the end of the epoch (step ", step,
      "); hint: all workers must change them in the same way: give a learning rate schedule to "
      "DistributedOptimizer(..., schedule=schedule), or step it once an epoch, not once a batch, "
      "because workers may have different numbers of batches");
  const bool own = !known || digests[static_cast<size_t>(rank)] != common;
  return own ? absl::InternalError(text) : absl::AbortedError(text);
}

}  // namespace tandem::worker
