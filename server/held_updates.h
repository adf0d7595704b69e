// Updates a range has admitted but not applied: those of open groups, which its policy holds back,
// and closed ones in the queue of a fixed delay. They refer to the push frames they came in.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_HELD_UPDATES_H_
#define TANDEM_SERVER_HELD_UPDATES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "policies/policy.h"

namespace tandem::server {

// HeldUpdate::version_read of an update that a save brought along: the run that sent it has counted
// it, this one does not.
inline constexpr int64_t kReadByAnotherRun = -1;

// One worker's gradient sums for one range and step.
struct HeldUpdate : policies::Update {
  int32_t clock_gap = 0;
  int32_t in_flight = 0;
  int32_t read =
      -1;         // the read it comes from, in its range's ReadLog; it does not move with the range
  Buffer keys;    // uint64 each, unique
  Buffer values;  // [keys, dim]

  size_t Bytes() const { return keys.size() + values.size(); }
};

// The updates of one group, which are folded in this order; those without rows are absent but
// counted. The group of a step is in rank order, another one in the order of arrival.
struct HeldStep {
  int64_t step = 0;           // or the number of the tick that will close it
  uint64_t samples = 0;       // sum of n over all of them
  int64_t contributions = 0;  // those that had samples
  std::vector<HeldUpdate> updates;

  void Insert(HeldUpdate update);  // keeps rank order
};

// Steps, first in, first out. Places are used again with the memory of their lists, so that a
// queue that goes on for ever allocates nothing.
class HeldQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  HeldStep& operator[](size_t i) { return ring_[(first_ + i) % ring_.size()]; }
  const HeldStep& operator[](size_t i) const { return ring_[(first_ + i) % ring_.size()]; }
  HeldStep& front() { return (*this)[0]; }

  HeldStep& Add();             // a step without updates, at the end
  void Take(HeldQueue* from);  // moves the front of another queue to the end of this one
  void DropFront();
  void Clear();

 private:
  std::vector<HeldStep> ring_;
  size_t first_ = 0, size_ = 0;
};

// Bytes that carry held updates in a range move and in a save. `in_batches`: the open group is no
// step but a batch in the order of arrival (Properties::batch). Who does not care gives no place for it.
std::string EncodeHeld(const HeldQueue& open, const HeldQueue& delayed, bool in_batches);
absl::Status DecodeHeld(absl::string_view bytes, int dim, BufferSource& source, HeldQueue* open,
                        HeldQueue* delayed, bool* in_batches = nullptr);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_HELD_UPDATES_H_
