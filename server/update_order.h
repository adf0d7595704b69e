// The order in which ranges took updates, as a job with `staleness.order` writes it down, a file a
// shard: one entry for each push of a worker that a range admitted. With the versions that were read
// it says all that depends on time in a run; `tandem replay` runs the job again by it (replay.h).
//
// Fixed layout, little-endian: an OrderFileHead, then entries. Those of one range stand in the order in
// which it took them. A run that goes on from a save (--resume) adds to its files, but what they say
// together is no order of one run.
#ifndef TANDEM_SERVER_UPDATE_ORDER_H_
#define TANDEM_SERVER_UPDATE_ORDER_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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
  int64_t version = 0;       // of the range, before this
  int64_t admitted_before =
      0;                     // steps of all workers that the range had admitted: the entry's place
  int64_t read_number = -1;  // policies::Update::read_number
};
static_assert(sizeof(OrderEntry) == 64);

struct OrderFileHead {
  char magic[8] = {'T', 'N', 'D', 'M', 'O', 'R', 'D', '1'};  // the last one: the layout
  uint64_t record_bytes = sizeof(OrderEntry);

  // Read from a file: is it followed by entries of this layout?
  bool IsOurs() const { return std::memcmp(this, &kOurs, sizeof kOurs) == 0; }
  static const OrderFileHead kOurs;
};
inline constexpr OrderFileHead OrderFileHead::kOurs;
static_assert(sizeof(OrderFileHead) == 16);

inline constexpr char kOrderSuffix[] = ".order";

// The whole order of each range that `wanted` names, from the files of the folder of a run with so many
// workers. One line says which file is not as it should be: missing, of another layout, cut short, with a
// gap, with numbers that no run writes.
absl::StatusOr<std::map<uint32_t, std::vector<OrderEntry>>> ReadOrder(
    const std::string& folder, int workers, const std::function<bool(uint32_t range)>& wanted);

// Is it the order of a run that has come to its end, at which all workers stand at one step? Each of
// `ranges` must have all of them up to it. Otherwise one line says what is missing, or what ReadOrder
// would. Nothing is kept in memory.
absl::Status CheckWholeOrder(const std::string& folder, int workers,
                             const std::vector<uint32_t>& ranges);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_UPDATE_ORDER_H_
