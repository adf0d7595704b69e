// The staleness record: one per update (worker, step, range) that touched rows, as it was consumed.
// Fixed layout, 72 bytes, little-endian; files of them have no header, so they can be concatenated.
#ifndef TANDEM_SERVER_UPDATE_RECORD_H_
#define TANDEM_SERVER_UPDATE_RECORD_H_

#include <cstdint>

namespace tandem::server {

struct UpdateRecord {
  int64_t step = 0;
  int64_t version_read = 0;     // of the range, when the gradient's rows were read
  int64_t version_applied = 0;  // of the range, when the update was applied; staleness: difference
  uint64_t samples = 0;         // n of this worker's gradient sum
  uint32_t range = 0;
  uint32_t table = 0;
  uint32_t rows = 0;
  uint16_t worker = 0;
  uint16_t fate = 0;        // UpdateFate
  int32_t clock_gap = 0;    // the worker's, at the start of the step
  int32_t in_flight = 0;    // its batches started and not yet applied, this one included
  int64_t admitted_at = 0;  // by the range: microseconds of its owner's monotonic clock
  uint64_t divided_by = 0;  // n of what was applied: this update's own, or the sum of the fold's
};
static_assert(sizeof(UpdateRecord) == 72);

enum UpdateFate : uint16_t {
  kFateApplied = 0,  // by itself
  kFateMerged = 1,   // folded with those of other workers
  kFateDropped = 2,
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_UPDATE_RECORD_H_
