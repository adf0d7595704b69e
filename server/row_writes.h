// What programs do to the rows of a range of a STORE table: whole rows are assigned, inserted if
// absent, erased, each write once and in the order of its writer.
//
// A writer numbers its writes to a range 1, 2, 3, ... and sends one only when the one before it is
// answered, or given up. The range remembers of each writer the number of its last write and which
// rows that one changed: the same number again is answered again, a smaller one is a copy that was
// late and changes nothing. So of the writes of several programs the last one to arrive for the first
// time wins, whatever is sent again. The memory moves with its range and is saved with it.
//
// It has a bound: kMostWriters, of whom the one that has been silent for the most writes is forgotten.
// A copy of a write that arrives when so many others have written since would count again.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROW_WRITES_H_
#define TANDEM_SERVER_ROW_WRITES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "server/range_store.h"

namespace tandem::server {

class RowWrites {
 public:
  static constexpr size_t kMostWriters = 4096;

  // Applies write `number` of `writer`, unless it was before. values: a row of dim + slots floats for
  // each key, of writes that have them. changed: appended in the order of `keys`, those that were
  // inserted, or erased; of an assignment nothing. A key may repeat: its places count one after the
  // other. Requires: at most kMaxStoreRows keys.
  void Apply(uint64_t writer, int64_t number, StoreAction action, absl::Span<const uint64_t> keys,
             absl::Span<const float> values, RangeStore* store, std::vector<uint64_t>* changed);

  size_t writers() const { return writers_.size(); }
  uint64_t writes() const { return writes_; }  // of all writers, each once

  void Encode(std::string* out) const;
  // DATA_LOSS: bytes that Encode does not make.
  absl::Status Decode(absl::string_view bytes);

 private:
  struct Writer {
    int64_t number = 0;            // of its last write
    uint64_t at = 0;               // writes_ at that
    std::vector<uint8_t> changed;  // a bit for each key of it
  };
  Writer* Find(uint64_t writer);

  std::map<uint64_t, Writer> writers_;
  uint64_t writes_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROW_WRITES_H_
