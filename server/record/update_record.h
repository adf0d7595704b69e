// The staleness record: one for each update (worker, step, range) with rows, written when the
// update is applied or dropped. Fixed layout, little-endian. A file begins with a RecordFileHead,
// which names the layout of its records. Files of one layout can be joined behind one head. Early
// versions wrote no head and records of 72 bytes, without the last fields; such a file is refused.
#ifndef TANDEM_SERVER_RECORD_UPDATE_RECORD_H_
#define TANDEM_SERVER_RECORD_UPDATE_RECORD_H_

#include <cstdint>
#include <cstring>

namespace tandem::server {

struct UpdateRecord {
  int64_t step = 0;
  int64_t version_read = 0;     // of the range, when the gradient's rows were read
  int64_t version_applied = 0;  // of the range, when applied; staleness is the difference
  uint64_t samples = 0;         // n of this worker's gradient sum
  uint32_t range = 0;
  uint32_t table = 0;
  uint32_t rows = 0;
  uint16_t worker = 0;
  uint16_t fate = 0;        // UpdateFate
  int32_t clock_gap = 0;    // the worker's, at the start of the step
  int32_t in_flight = 0;    // the worker's batches started and not yet applied, with this one
  int64_t admitted_at = 0;  // when the range admitted it: microseconds of its owner's clock
  uint64_t divided_by = 0;  // divisor of the gradient: the samples of this update, or of the fold
  int64_t age = -1;         // microseconds from the read to here; -1: dropped, or not known
  // Row staleness: updates of a row between the read and this update. Sum and maximum over the rows
  // for which it is known. Row staleness is known for all rows or for none: not for a dropped
  // update, and not if the rows were read from an earlier owner of the range.
  uint64_t row_staleness_sum = 0;
  uint32_t row_staleness_max = 0;
  uint32_t rows_measured = 0;
};
static_assert(sizeof(UpdateRecord) == 96);

struct RecordFileHead {
  char magic[8] = {'T', 'N', 'D', 'M', 'U', 'P', 'D', '2'};  // the last character: the layout
  uint64_t record_bytes = sizeof(UpdateRecord);

  // For a head read from a file: true if records of this layout follow it.
  bool IsOurs() const { return std::memcmp(this, &kOurs, sizeof kOurs) == 0; }
  static const RecordFileHead kOurs;
};
inline constexpr RecordFileHead RecordFileHead::kOurs;
static_assert(sizeof(RecordFileHead) == 16);

enum UpdateFate : uint16_t {
  kFateApplied = 0,  // by itself
  kFateMerged = 1,   // folded with the updates of other workers
  kFateDropped = 2,
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_UPDATE_RECORD_H_
