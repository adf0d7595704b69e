// When each read of a range was answered and, where row staleness is wanted, how often each of its
// rows had been updated by then: what the staleness of the update that comes of it is measured with.
//
// A read is kept by worker and step until its update comes, and from then on with that update until
// it is applied or dropped, so nothing about it travels: neither a pull nor a push says more than it
// did. The alternatives cost more or say less: counters in the answer and back in the push are four
// bytes a row on the wire each way, and a row that remembers the versions of its last K updates knows
// no gap above K. Counters are of this owner of the range since it has it: after a move or a
// restart they begin at 0, and of reads before that nothing is known.
//
// Of each worker only the last reads are kept, as in ReadMemory. Places are used again with their
// memory: a range that goes on for ever allocates nothing.
//
// Cost: some 100 bytes a read; by row also 4 bytes for each row of the range, and 16 for each row of a read
// whose update is still to come or held.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_READ_LOG_H_
#define TANDEM_SERVER_READ_LOG_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "policies/policy.h"

namespace tandem::server {

class ReadLog {
 public:
  static constexpr int32_t kUnknown = -1;

  // At most `reads` of each worker are kept, the latest. `by_row`: with their rows.
  ReadLog(int workers, int reads, bool by_row);

  bool by_row() const { return by_row_; }

  // Worker `rank` has been answered for `step` at `version`; `now_us`: microseconds of the owner's
  // monotonic clock. `rows`: the numbers of the keys' rows; both empty unless by row.
  void OnRead(int rank, int64_t step, int64_t version, int64_t now_us,
              absl::Span<const uint64_t> keys, absl::Span<const uint32_t> rows);

  // The read that this update comes from, which is now the update's until Drop; kUnknown if it is not
  // here.
  int32_t Take(const policies::Update& update);
  void Drop(int32_t read);

  // Of a read that was taken. RowsOf: the row numbers of these keys, which were read in this order,
  // though perhaps with others; and, beside each, its updates as they were read. False if one is not
  // among them.
  int64_t ReadAt(int32_t read) const { return places_[static_cast<size_t>(read)].at_us; }
  bool RowsOf(int32_t read, absl::Span<const uint64_t> keys, std::vector<uint32_t>* rows,
              std::vector<uint32_t>* updates_as_read) const;

  // Updates of a row so far, and one more of each of these.
  uint32_t Updates(uint32_t row) const { return row < updates_.size() ? updates_[row] : 0; }
  void CountUpdate(absl::Span<const uint32_t> rows);

 private:
  struct Read {
    int64_t step = -1;  // -1: a place that is free
    int64_t version = 0;
    int64_t at_us = 0;
    std::vector<uint64_t> keys;
    std::vector<uint32_t> rows, updates;
  };
  int32_t NewPlace();
  static std::tuple<bool, int64_t, int64_t> AgeOrder(const Read& read);

  const bool by_row_;
  std::vector<std::vector<int32_t>> of_worker_;  // places of reads whose update is still to come
  std::vector<Read> places_;
  std::vector<int32_t> free_;
  std::vector<uint32_t> updates_;  // by row number
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_READ_LOG_H_
