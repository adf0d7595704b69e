// Updates that a range has admitted but not applied: those of open groups, which the policy holds
// back, and those of closed groups in the queue of a fixed delay. Their buffers are parts of the
// push frames that they came in.
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

// HeldUpdate::version_read of an update loaded from a checkpoint of another run. That run has
// counted the update, so this one does not.
inline constexpr int64_t kReadByAnotherRun = -1;

// One worker's gradient sums for one range and step.
struct HeldUpdate : policies::Update {
  int32_t clock_gap = 0;
  int32_t in_flight = 0;
  // The read that the update comes from, in the PullTimes of its range. It does not move with the
  // range.
  int32_t read = -1;
  Buffer keys;    // uint64 each, unique
  Buffer values;  // [keys, dim]

  size_t Bytes() const { return keys.size() + values.size(); }
};

// The updates of one group, in the order of arrival. The range folds a step in rank
// order, so it sorts the updates when the step closes. The copy for a checkpoint or a range move is
// sorted, too. Updates without rows are counted but not listed.
struct HeldStep {
  int64_t step = 0;           // the step, or the number of the tick that will close the group
  uint64_t samples = 0;       // sum of n over all updates, with and without rows
  int64_t contributions = 0;  // updates that had samples; with batches also skipped ones
  bool skipped = false;       // a worker has skipped its batch of this step
  std::vector<HeldUpdate> updates;

  void SortByRank();
  void Insert(HeldUpdate update);  // keeps rank order
};

// A first-in, first-out queue of steps. It reuses places with the memory of their lists, so a queue
// that runs for ever allocates nothing.
class HeldQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  HeldStep& operator[](size_t i) { return ring_[(first_ + i) % ring_.size()]; }
  const HeldStep& operator[](size_t i) const { return ring_[(first_ + i) % ring_.size()]; }
  HeldStep& front() { return (*this)[0]; }

  HeldStep& Add();             // appends a step without updates
  void Take(HeldQueue* from);  // moves the front of another queue to the end of this one
  void DropFront();
  void Clear();

 private:
  std::vector<HeldStep> ring_;
  size_t first_ = 0, size_ = 0;
};

// The bytes of held updates in a range move and in a checkpoint. `in_batches`: the open group is
// not a step but a batch in the order of arrival (Properties::batch); null if the caller does not
// need it.
std::string EncodeHeld(const HeldQueue& open, const HeldQueue& delayed, bool in_batches);
absl::Status DecodeHeld(absl::string_view bytes, int dim, BufferSource& source, HeldQueue* open,
                        HeldQueue* delayed, bool* in_batches = nullptr);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_HELD_UPDATES_H_
