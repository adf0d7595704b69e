// Writes of programs to the rows of a KEY_VALUE table's range: they assign whole rows, insert rows
// if absent, and erase rows. Each write counts once and in the order of its writer.
//
// A writer numbers its writes to a range 1, 2, 3, ... and sends one only when the previous one is
// answered or given up. For each writer, the range remembers the number of the last write and the
// rows that it changed. A write with the same number is a resend and gets the same answer. A write
// with a smaller number is a late copy and changes nothing. So if several programs write a row, the
// write that arrives last for the first time wins, whatever is resent. This memory moves with its
// range and is part of checkpoints.
//
// The memory is bounded to kMaxWriters writers. The writer that is silent longest, counted
// in writes of others, is forgotten. A copy of its last write would count again if it arrived after
// that.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROWS_ROW_WRITES_H_
#define TANDEM_SERVER_ROWS_ROW_WRITES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "server/rows/row_table.h"

namespace tandem::server {

class RowWrites {
 public:
  static constexpr size_t kMaxWriters = 4096;

  // Applies write `number` of `writer`, unless it was applied before. values: dim + slots floats
  // for each key, if the action has values. Appends to `changed` the keys that were inserted or
  // erased, in the order of `keys`; an assignment appends nothing. A key may be repeated; its
  // occurrences are applied one after the other. RESOURCE_EXHAUSTED: no memory for a row; the write
  // counts, but a part of it is missing. Requires: at most kMaxStoreRows keys.
  absl::Status Apply(uint64_t writer, int64_t number, StoreAction action,
                     absl::Span<const uint64_t> keys, absl::Span<const float> values,
                     RowTable* store, std::vector<uint64_t>* changed);

  // True if the write was applied before, or a later one of the writer was: Apply changes no row.
  bool Knows(uint64_t writer, int64_t number) const {
    const auto at = writers_.find(writer);
    return at != writers_.end() && number <= at->second.number;
  }

  size_t writers() const { return writers_.size(); }
  uint64_t writes() const { return writes_; }  // of all writers, each once

  void Encode(std::string* out) const;
  // DATA_LOSS if Encode cannot have written the bytes.
  absl::Status Decode(absl::string_view bytes);

 private:
  struct Writer {
    int64_t number = 0;            // of its last write
    uint64_t at = 0;               // writes_ when that write was applied
    std::vector<uint8_t> changed;  // a bit for each key of that write
  };
  Writer* Find(uint64_t writer);

  std::map<uint64_t, Writer> writers_;
  uint64_t writes_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_WRITES_H_
