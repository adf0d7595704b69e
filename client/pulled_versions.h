// PulledVersions remembers which version of each range the reads of a step saw. The pushes of that
// step report these versions as the ones that their gradients were computed from.
//
// Thread safety: none; only the thread of its ClientCore uses it.
#ifndef TANDEM_CLIENT_PULLED_VERSIONS_H_
#define TANDEM_CLIENT_PULLED_VERSIONS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::client {

class PulledVersions {
 public:
  // Remembers at most `most` steps (of one group each), also if nothing is pushed for them.
  explicit PulledVersions(size_t most) : most_(most) {}

  // The versions by range; null if nothing was read for the step.
  const std::vector<int64_t>* Find(uint32_t group, int64_t step) const;
  // The same, for writing, and valid until the next call. A new entry begins with zeros for
  // `ranges` ranges.
  std::vector<int64_t>& At(uint32_t group, int64_t step, size_t ranges);
  // Forgets all steps of a group up to `step`, also steps that were read but never pushed
  // (prefetched reads at the end of an epoch).
  void Forget(uint32_t group, int64_t step);

 private:
  struct Entry {
    uint32_t group = 0;
    int64_t step = 0;
    std::vector<int64_t> versions;  // by range
  };
  const size_t most_;
  std::vector<Entry> entries_, spare_;  // spare entries keep their memory
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_PULLED_VERSIONS_H_
