// The order in which ranges admitted updates. A job with `staleness.record_order` writes it to one
// file a shard, with one entry for each push that a range admitted. The order and the versions that
// were read are everything in a run that depends on time; `tandem replay` repeats the run from them
// (replay.h).
//
// Fixed layout, little-endian: an OrderFileHead, then entries. The entries of one range are in the
// order of admission. A run that resumes from a checkpoint (--resume) appends to its files, but
// such files together are not the order of one run.
#ifndef TANDEM_SERVER_RECORD_ORDER_FILE_H_
#define TANDEM_SERVER_RECORD_ORDER_FILE_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "policies/order/update_order.h"
#include "server/rows/held_updates.h"

namespace tandem::server {

struct OrderEntry {
  uint32_t range = 0;
  uint16_t worker = 0;
  uint16_t finished = 0;  // 1: the worker's clock counts as infinite until its next push
  uint32_t steps = 1;     // steps [step + 1 - steps, step] of the worker; more than 1: without rows
  uint32_t rows = 0;
  int64_t step = 0;
  uint64_t samples = 0;
  int64_t version_read = 0;  // of the range, when the gradient's rows were read
  int64_t version = 0;       // of the range, before this push
  // Steps of all workers that the range had admitted before this push: the entry's place in the
  // order.
  int64_t admitted_before = 0;
  int64_t read_number = -1;  // policies::Update::read_number
};
static_assert(sizeof(OrderEntry) == 64);

// The view of a range for code that records or repeats its order of updates.
struct OrderedRange {
  uint32_t id = 0;
  const policies::OrderState& order;
};
// The entry of an update before its admission. Arguments: as for UpdateOrder::Admit.
OrderEntry EntryOf(const OrderedRange& range, const HeldUpdate& update, int64_t first,
                   bool finished);

struct OrderFileHead {
  char magic[8] = {'T', 'N', 'D', 'M', 'O', 'R', 'D', '1'};  // the last character: the layout
  uint64_t record_bytes = sizeof(OrderEntry);

  // For a head read from a file: true if entries of this layout follow it.
  bool IsOurs() const { return std::memcmp(this, &kOurs, sizeof kOurs) == 0; }
  static const OrderFileHead kOurs;
};
inline constexpr OrderFileHead OrderFileHead::kOurs;
static_assert(sizeof(OrderFileHead) == 16);

inline constexpr char kOrderSuffix[] = ".order";

// Reads the whole order of each range for which `wanted` is true, from the files in the folder of a
// run with `workers` workers. The error is one line that names the file and its fault: it is
// missing, has another layout, is cut short, has a gap, or has numbers that no run writes.
absl::StatusOr<std::map<uint32_t, std::vector<OrderEntry>>> ReadOrder(
    const std::string& folder, int workers, const std::function<bool(uint32_t range)>& wanted);

// Checks that the folder has the order of a finished run. At the end of a run all workers are at
// the same step, so each of `ranges` must have all of their steps up to it. The error is one line:
// the missing part, or an error of ReadOrder. Keeps no entries in memory.
absl::Status CheckWholeOrder(const std::string& folder, int workers,
                             const std::vector<uint32_t>& ranges);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_ORDER_FILE_H_
