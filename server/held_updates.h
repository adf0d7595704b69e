// Updates a range has admitted but not applied: those of open steps, waiting for the other workers,
// and folded steps in the queue of a fixed delay. They refer to the push frames they came in.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_HELD_UPDATES_H_
#define TANDEM_SERVER_HELD_UPDATES_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"

namespace tandem {

// One worker's gradient sums for one range and step.
struct HeldUpdate {
  int rank = 0;
  int64_t step = 0;
  uint64_t samples = 0;
  int64_t version_read = 0;
  int32_t clock_gap = 0;
  int32_t in_flight = 0;
  Buffer keys;    // uint64 each, unique
  Buffer values;  // [keys, dim]

  size_t Bytes() const { return keys.size() + values.size(); }
};

// All updates of one step, in rank order; workers without rows are absent but counted in samples.
struct HeldStep {
  int64_t step = 0;
  uint64_t samples = 0;  // sum of n over all workers
  std::vector<HeldUpdate> updates;

  void Insert(HeldUpdate update);  // keeps rank order
};

// Bytes that carry held steps in a range move.
std::string EncodeHeld(absl::Span<const HeldStep> open, absl::Span<const HeldStep> delayed);
absl::Status DecodeHeld(absl::string_view bytes, int dim, BufferSource& source,
                        std::deque<HeldStep>* open, std::deque<HeldStep>* delayed);

}  // namespace tandem

#endif  // TANDEM_SERVER_HELD_UPDATES_H_
