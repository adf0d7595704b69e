// The weights of the hot rows of a range (HotRows in proto/job.proto). They are numbered from 0
// on. A row has the same number until it leaves, or the range shrinks.
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROWS_HOT_ROWS_H_
#define TANDEM_SERVER_ROWS_HOT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "optim/row_format.h"
#include "server/rows/row_slabs.h"

namespace tandem::server {

class HotRows {
 public:
  // Null if no row of the format becomes hot. `may_grow`: whether the rows may take so many more
  // bytes; null: always. `arena` outlives the rows.
  static std::unique_ptr<HotRows> New(const optim::RowFormat& format,
                                      std::function<bool(size_t)> may_grow, PageArena* arena) {
    if (format.types().hot_updates == 0) return nullptr;
    return std::unique_ptr<HotRows>(new HotRows(format, std::move(may_grow), arena));
  }

  // In the following, `stored` is where the range has the row (RowFormat).

  // Makes a row hot. Its weights then have no value. RESOURCE_EXHAUSTED: there is no memory, and
  // the row stays as it is.
  absl::Status Make(void* stored) {
    if (free_.empty() && may_grow_ != nullptr && !may_grow_(format_.hot_bytes())) {
      return absl::Status(absl::StatusCode::kResourceExhausted, "");  // allocates nothing
    }
    return Add(stored);
  }
  // Makes a row hot with the weights of a hot row of `from`. The caller frees `from` afterwards, so
  // may_grow is not asked.
  absl::Status Move(const HotRows& from, const void* stored_there, void* stored) {
    TANDEM_RETURN_IF_ERROR(Add(stored));
    std::memcpy(Weights(stored), from.Weights(stored_there), format_.hot_bytes());
    return absl::OkStatus();
  }
  // The row leaves the range. Does nothing if it is not hot.
  void Remove(const void* stored) {
    if (!format_.IsHot(stored)) return;
    free_.push_back(format_.HotNumber(stored));
    --size_;
  }

  // The weights of a hot row, as RowTypes::hot.
  void* Weights(const void* stored) const { return rows_.Weights(format_.HotNumber(stored)); }
  // Starts loading the weights of the row, if it is hot. Always inlined; row_slabs.h says why.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void Prefetch(const void* stored) const {
    if (format_.IsHot(stored)) rows_.PrefetchWeights(Weights(stored));
  }

  int64_t size() const { return size_; }
  size_t MemoryBytes() const { return rows_.MemoryBytes(); }  // of the arena
  size_t OtherBytes() const { return free_.capacity() * sizeof(uint32_t); }

 private:
  HotRows(const optim::RowFormat& format, std::function<bool(size_t)> may_grow, PageArena* arena)
      : format_(format),
        may_grow_(std::move(may_grow)),
        rows_(format.hot_bytes(), /*slot_bytes=*/0, arena) {}

  absl::Status Add(void* stored) {
    if (free_.empty()) {
      const auto next = static_cast<size_t>(size_);
      TANDEM_RETURN_IF_ERROR(rows_.Reserve(next + 1));
      format_.SetHot(static_cast<uint32_t>(next), stored);
    } else {
      format_.SetHot(free_.back(), stored);
      free_.pop_back();
    }
    ++size_;
    return absl::OkStatus();
  }

  const optim::RowFormat format_;
  const std::function<bool(size_t)> may_grow_;
  RowSlabs rows_;
  std::vector<uint32_t> free_;  // numbers of rows that have left
  int64_t size_ = 0;
};

// The weights at `stored` as floats. `hot`: those of the range; null: no row becomes hot. `dim`: as
// of DispatchDim.
template <typename Dim>
void ReadWeights(const optim::RowFormat& format, const HotRows* hot, Dim dim, const void* stored,
                 float* out) {
  if (hot == nullptr || !format.IsHot(stored)) return format.ReadWeights(dim, stored, out);
  optim::ExpandRow(format.types().hot, dim, hot->Weights(stored), out);
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_HOT_ROWS_H_
