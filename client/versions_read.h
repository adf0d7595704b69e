// Which version of each range the reads of a step saw: what the pushes of that step say their
// gradients come from.
//
// Thread safety: none; it belongs to the thread of its ClientCore.
#ifndef TANDEM_CLIENT_VERSIONS_READ_H_
#define TANDEM_CLIENT_VERSIONS_READ_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::client {

class VersionsRead {
 public:
  // Keeps those of so many steps (of one group each), also if nothing is pushed for them.
  explicit VersionsRead(size_t most) : most_(most) {}

  // By range; null if nothing was read for the step.
  const std::vector<int64_t>* Find(uint32_t group, int64_t step) const;
  // The same, to be written; begins with zeros for `ranges` ranges. Valid until the next call.
  std::vector<int64_t>& At(uint32_t group, int64_t step, size_t ranges);
  // Forgets those of a group up to `step`: also of steps that were read and never pushed (reads
  // ahead at the end of an epoch).
  void Forget(uint32_t group, int64_t step);

 private:
  struct Entry {
    uint32_t group = 0;
    int64_t step = 0;
    std::vector<int64_t> versions;  // by range
  };
  const size_t most_;
  std::vector<Entry> entries_, spare_;  // spare ones keep their memory
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_VERSIONS_READ_H_
