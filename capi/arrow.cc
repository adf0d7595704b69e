// tandem_arrow_* of capi/tandem.h.
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/arrow_batches.h"
#include "capi/returns.h"
#include "capi/tandem.h"
#include "data/arrow_columns.h"

struct tandem_arrow {
  explicit tandem_arrow(std::unique_ptr<tandem::data::ArrowStream> stream)
      : batches(std::move(stream)) {}

  tandem::capi::ArrowBatches batches;
};

namespace tandem::capi {
namespace {

absl::Status OpenArrow(ArrowArrayStream* stream, const char* name, tandem_arrow** arrow) {
  if (stream == nullptr) return Missing("stream");
  TANDEM_ASSIGN_OR_RETURN(auto taken, data::ArrowStream::Take(OrEmpty(name), stream));
  if (arrow == nullptr) return Missing("arrow");
  *arrow = new tandem_arrow(std::move(taken));
  return absl::OkStatus();
}

bool HasColumn(const tandem_arrow& arrow, int32_t column) {
  return column >= 0 && static_cast<size_t>(column) < arrow.batches.names().size();
}

absl::Status NoColumn(const tandem_arrow& arrow, int32_t column) {
  return absl::InvalidArgumentError(
      absl::StrCat("column ", column, ", expected 0 to ", arrow.batches.names().size() - 1));
}

absl::Status ReadColumn(tandem_arrow* arrow, int32_t column, int32_t as) {
  using As = ArrowBatches::As;
  if (!HasColumn(*arrow, column)) return NoColumn(*arrow, column);
  const auto at = static_cast<size_t>(column);
  switch (as) {
    case TANDEM_ARROW_ID:
      return arrow->batches.Read(at, As::kId);
    case TANDEM_ARROW_IDS:
      return arrow->batches.Read(at, As::kIds);
    case TANDEM_ARROW_RAW_IDS:
      return arrow->batches.Read(at, As::kRawIds);
    case TANDEM_ARROW_NUMBERS:
      return arrow->batches.Read(at, As::kNumbers);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("as: ", as, ", expected one of TANDEM_ARROW_ID to TANDEM_ARROW_NUMBERS"));
  }
}

absl::StatusOr<bool> Advance(tandem_arrow* arrow, int64_t most, int64_t* rows, bool keep) {
  if (rows == nullptr) return Missing("rows");
  *rows = 0;
  if (most < 1) {
    return absl::InvalidArgumentError(absl::StrCat("most: ", most, " rows; expected 1 or more"));
  }
  TANDEM_ASSIGN_OR_RETURN(*rows, keep ? arrow->batches.Next(most) : arrow->batches.Skip(most));
  return *rows > 0;
}

absl::Status Values(const tandem_arrow& arrow, int32_t column, const void** values, int64_t* count,
                    const int64_t** offsets) {
  if (values == nullptr || count == nullptr || offsets == nullptr) {
    return Missing("values, count, offsets");
  }
  if (!HasColumn(arrow, column)) return NoColumn(arrow, column);
  const ArrowBatches::Column* const read = arrow.batches.Find(static_cast<size_t>(column));
  if (read == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("column ", column, " is not read; call tandem_arrow_read before"));
  }
  const bool numbers = read->as == ArrowBatches::As::kNumbers;
  *values = numbers ? static_cast<const void*>(read->numbers.data()) : read->ids.data();
  *count = static_cast<int64_t>(numbers ? read->numbers.size() : read->ids.size());
  *offsets = read->is_list ? read->offsets.data() : nullptr;
  return absl::OkStatus();
}

}  // namespace
}  // namespace tandem::capi

using namespace tandem::capi;  // NOLINT: C functions follow

int tandem_arrow_open(struct ArrowArrayStream* stream, const char* name, tandem_arrow** arrow) {
  return Call([&] { return OpenArrow(stream, name, arrow); });
}

int32_t tandem_arrow_columns(const tandem_arrow* arrow) {
  return static_cast<int32_t>(arrow->batches.names().size());
}

const char* tandem_arrow_column(const tandem_arrow* arrow, int32_t column) {
  return HasColumn(*arrow, column) ? arrow->batches.names()[column].c_str() : "";
}

int tandem_arrow_read(tandem_arrow* arrow, int32_t column, int32_t as) {
  return CallOn(arrow, "arrow", [&] { return ReadColumn(arrow, column, as); });
}

int tandem_arrow_next(tandem_arrow* arrow, int64_t most, int64_t* rows) {
  return CallOn(arrow, "arrow", [&] { return Advance(arrow, most, rows, /*keep=*/true); });
}

int tandem_arrow_skip(tandem_arrow* arrow, int64_t most, int64_t* rows) {
  return CallOn(arrow, "arrow", [&] { return Advance(arrow, most, rows, /*keep=*/false); });
}

int tandem_arrow_values(const tandem_arrow* arrow, int32_t column, const void** values,
                        int64_t* count, const int64_t** offsets) {
  return CallOn(arrow, "arrow", [&] { return Values(*arrow, column, values, count, offsets); });
}

void tandem_arrow_free(tandem_arrow* arrow) { delete arrow; }
