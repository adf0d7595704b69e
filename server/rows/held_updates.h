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

// The staleness of the rows of an update.
struct RowStaleness {
  uint64_t sum = 0;
  uint32_t max = 0;
  uint32_t rows = 0;  // so many have been measured
};

// One worker's gradient sums for one range and step.
struct HeldUpdate : policies::Update {
  int32_t clock_gap = 0;
  int32_t in_flight = 0;
  // The read that the update comes from, in the PullTimes of its range. It does not move with the
  // range.
  int32_t read = -1;
  Buffer keys;    // uint64 each, unique
  Buffer values;  // [keys, dim]
  // With Properties::fold_by_worker. At least 0: the update had so many rows, and its gradients are
  // a part of those of the worker's first update in the group. The first update then has the
  // gradients of several. -1: the keys are those of the update.
  int64_t rows_before_sum = -1;
  // The staleness of these rows, if it is measured. A range move leaves it behind.
  RowStaleness row_staleness;

  static constexpr bool kHasGradients = true;
  bool has_rows() const { return !keys.empty(); }
  // How many rows the update had when it came.
  size_t rows() const {
    return rows_before_sum >= 0 ? static_cast<size_t>(rows_before_sum)
                                : keys.size() / sizeof(uint64_t);
  }
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
