#include "server/rows/mean_squares.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace tandem::server {

absl::Status MeanSquares::Decode(uint64_t begin, uint64_t end, RowTable* store,
                                 absl::string_view* bytes) {
  const size_t row_bytes = dim_ * sizeof(float);
  uint64_t count = 0;
  if (bytes->size() >= sizeof count) std::memcpy(&count, bytes->data(), sizeof count);
  if (bytes->size() < sizeof count ||
      count > (bytes->size() - sizeof count) / (sizeof(uint64_t) + row_bytes)) {
    return absl::DataLossError(
        absl::StrCat("mean squares of ", count, " rows do not fit in ", bytes->size(), " bytes"));
  }
  bytes->remove_prefix(sizeof count);
  const absl::string_view keys = bytes->substr(0, count * sizeof(uint64_t));
  bytes->remove_prefix(keys.size());
  for (uint64_t i = 0; i < count; ++i) {
    uint64_t key = 0;
    std::memcpy(&key, keys.data() + i * sizeof key, sizeof key);
    if (!InRange(Position(store->options().salt, key), begin, end)) continue;
    uint32_t row = 0;
    TANDEM_RETURN_IF_ERROR(store->FindOrCreate({&key, 1}, {&row, 1}));
    Reserve(size_t{row} + 1);
    std::memcpy(Row(row), bytes->data() + i * row_bytes, row_bytes);
  }
  bytes->remove_prefix(count * row_bytes);
  return absl::OkStatus();
}

}  // namespace tandem::server
