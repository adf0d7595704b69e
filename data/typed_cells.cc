#include "data/typed_cells.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace tandem::data {
namespace {

template <typename T>
void Append(const T& value, std::string* row) {
  row->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(absl::string_view* row) {
  T value;
  TANDEM_CHECK(row->size() >= sizeof(value));
  std::memcpy(&value, row->data(), sizeof(value));
  row->remove_prefix(sizeof(value));
  return value;
}

template <typename T, typename... Format>
absl::string_view Shortest(T value, std::string* buffer, size_t most, Format... format) {
  buffer->resize(most);
  const auto end = std::to_chars(buffer->data(), buffer->data() + buffer->size(), value, format...);
  TANDEM_CHECK(end.ec == std::errc());
  return absl::string_view(buffer->data(), static_cast<size_t>(end.ptr - buffer->data()));
}

constexpr size_t kIntegerSize = 20, kFractionSize = 32, kLargestSize = 320;

// Python's text of a number with a fraction, which is also that of numpy and pandas.
template <typename T>
absl::string_view FractionText(T value, std::string* buffer) {
  constexpr double kMinFixed = 1e-4;
  const auto format = std::fabs(double{value}) < kMinFixed ? std::chars_format::scientific
                                                           : std::chars_format::fixed;
  return Shortest(value, buffer, kFractionSize, format);
}

}  // namespace

bool TypedCell::IsMissing() const {
  return kind == Kind::kNull || (kind == Kind::kText && text.empty()) ||
         ((kind == Kind::kFloat || kind == Kind::kDouble) && std::isnan(number));
}

absl::string_view TypedCell::Text(std::string* buffer) const {
  if (IsMissing()) return "";
  switch (kind) {
    case Kind::kText:
      return text;
    case Kind::kInteger:
      return Shortest(integer, buffer, kIntegerSize);
    case Kind::kBool:
      return integer != 0 ? "True" : "False";
    default:
      break;
  }
  constexpr double kMax = 0x1.0p63;
  if (number == std::trunc(number) && !std::isinf(number)) {  // 7.0 is the text 7
    return std::fabs(number) < kMax
               ? Shortest(static_cast<int64_t>(number), buffer, kIntegerSize)
               : Shortest(number, buffer, kLargestSize, std::chars_format::fixed);
  }
  return kind == Kind::kFloat ? FractionText(static_cast<float>(number), buffer)
                              : FractionText(number, buffer);
}

double TypedCell::Number() const {
  if (IsMissing()) return std::numeric_limits<double>::quiet_NaN();
  const bool whole = kind == Kind::kInteger || kind == Kind::kBool;
  return whole ? static_cast<double>(integer) : number;
}

void AppendCell(const TypedCell& cell, std::string* row) {
  Append(cell.kind, row);
  switch (cell.kind) {
    case TypedCell::Kind::kNull:
      return;
    case TypedCell::Kind::kText:
      Append(static_cast<uint32_t>(cell.text.size()), row);
      row->append(cell.text.data(), cell.text.size());
      return;
    case TypedCell::Kind::kInteger:
    case TypedCell::Kind::kBool:
      return Append(cell.integer, row);
    case TypedCell::Kind::kFloat:
    case TypedCell::Kind::kDouble:
    case TypedCell::Kind::kTime:
      return Append(cell.number, row);
    case TypedCell::Kind::kList:
      Append(static_cast<uint32_t>(cell.items.size()), row);
      for (const TypedCell& item : cell.items) AppendCell(item, row);
      return;
  }
}

void TakeCell(absl::string_view* row, TypedCell* cell) {
  cell->kind = Take<TypedCell::Kind>(row);
  switch (cell->kind) {
    case TypedCell::Kind::kNull:
      return;
    case TypedCell::Kind::kText: {
      const uint32_t size = Take<uint32_t>(row);
      TANDEM_CHECK(row->size() >= size);
      cell->text = row->substr(0, size);
      row->remove_prefix(size);
      return;
    }
    case TypedCell::Kind::kInteger:
    case TypedCell::Kind::kBool:
      cell->integer = Take<int64_t>(row);
      return;
    case TypedCell::Kind::kFloat:
    case TypedCell::Kind::kDouble:
    case TypedCell::Kind::kTime:
      cell->number = Take<double>(row);
      return;
    case TypedCell::Kind::kList:
      cell->items.resize(Take<uint32_t>(row));
      for (TypedCell& item : cell->items) TakeCell(row, &item);
      return;
  }
}

}  // namespace tandem::data
