// The staleness record: one per update (worker, step, range) that touched rows, as it was consumed.
// Fixed layout, little-endian. A file of them begins with a RecordFileHead, which says which layout its
// records have; files of one layout can be joined behind one head. Before there were heads a record had
// 72 bytes, without what stands at the end here; such a file is refused.
#ifndef TANDEM_SERVER_UPDATE_RECORD_H_
#define TANDEM_SERVER_UPDATE_RECORD_H_

#include <cstdint>
#include <cstring>

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
  int64_t age = -1;         // microseconds from the read to here; -1: dropped, or not known
  // Row staleness: updates of a row between the read and this one. Sum and maximum over the rows for
  // which it is known: all of them, or none (dropped; read from an owner before this one).
  uint64_t row_staleness_sum = 0;
  uint32_t row_staleness_max = 0;
  uint32_t rows_measured = 0;
};
static_assert(sizeof(UpdateRecord) == 96);

struct RecordFileHead {
  char magic[8] = {'T', 'N', 'D', 'M', 'U', 'P', 'D', '2'};  // the last one: the layout
  uint64_t record_bytes = sizeof(UpdateRecord);

  // Read from a file: is it followed by records of this layout?
  bool IsOurs() const { return std::memcmp(this, &kOurs, sizeof kOurs) == 0; }
  static const RecordFileHead kOurs;
};
inline constexpr RecordFileHead RecordFileHead::kOurs;
static_assert(sizeof(RecordFileHead) == 16);

enum UpdateFate : uint16_t {
  kFateApplied = 0,  // by itself
  kFateMerged = 1,   // folded with those of other workers
  kFateDropped = 2,
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_UPDATE_RECORD_H_
