// Updates that a range has admitted but not applied (policies/order/held_groups.h), with their keys
// and gradients. Their buffers are parts of the push frames that they came in.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_HELD_UPDATES_H_
#define TANDEM_SERVER_ROWS_HELD_UPDATES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "policies/order/update_order.h"

namespace tandem::server {

// One worker's gradient sums for one range and step.
struct HeldUpdate : policies::Update {
  int32_t clock_gap = 0;
  int32_t in_flight = 0;
  // The read that the update comes from, in the PullTimes of its range. It does not move with the
  // range.
  int32_t read = -1;
  Buffer keys;    // uint64 each, unique
  Buffer values;  // [keys, dim]

  static constexpr bool kHasGradients = true;
  bool has_rows() const { return !keys.empty(); }
  size_t Bytes() const { return keys.size() + values.size(); }
};

using policies::kReadByAnotherRun;
using HeldStep = policies::HeldGroup<HeldUpdate>;
using HeldQueue = policies::HeldGroups<HeldUpdate>;

// The bytes of held updates in a range move and in a checkpoint. `in_batches`: the open group is
// not a step but a batch in the order of arrival (Properties::batch); null if the caller does not
// need it.
std::string EncodeHeld(const HeldQueue& open, const HeldQueue& delayed, bool in_batches);
absl::Status DecodeHeld(absl::string_view bytes, int dim, BufferSource& source, HeldQueue* open,
                        HeldQueue* delayed, bool* in_batches = nullptr);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_HELD_UPDATES_H_
