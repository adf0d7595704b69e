#include "data/arrow_columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::data {
namespace {

using Kind = ArrowType::Kind;

constexpr char kKnown[] =
    "numbers, booleans, text, decimals, dates, dictionaries and lists of them";

struct Simple {
  const char* format;
  Kind kind;
  int bytes;
  const char* name;
};
constexpr Simple kSimple[] = {
    {"n", Kind::kNull, 0, "null"},        {"b", Kind::kBool, 0, "bool"},
    {"c", Kind::kInteger, 1, "int8"},     {"C", Kind::kUnsigned, 1, "uint8"},
    {"s", Kind::kInteger, 2, "int16"},    {"S", Kind::kUnsigned, 2, "uint16"},
    {"i", Kind::kInteger, 4, "int32"},    {"I", Kind::kUnsigned, 4, "uint32"},
    {"l", Kind::kInteger, 8, "int64"},    {"L", Kind::kUnsigned, 8, "uint64"},
    {"e", Kind::kHalf, 2, "halffloat"},   {"f", Kind::kFloat, 4, "float"},
    {"g", Kind::kDouble, 8, "double"},    {"u", Kind::kText, 0, "text"},
    {"z", Kind::kText, 0, "binary"},      {"U", Kind::kLargeText, 0, "text"},
    {"Z", Kind::kLargeText, 0, "binary"}, {"vu", Kind::kTextView, 0, "text"},
    {"vz", Kind::kTextView, 0, "binary"}, {"tdD", Kind::kDays, 4, "date"},
    {"+l", Kind::kList, 0, "list"},       {"+L", Kind::kLargeList, 0, "list"},
    {"+vl", Kind::kListView, 0, "list"},  {"+vL", Kind::kLargeListView, 0, "list"},
};
struct Unread {
  const char* prefix;
  const char* name;
};
constexpr Unread kUnread[] = {{"+s", "struct"},          {"+m", "map"},         {"+u", "union"},
                              {"+r", "run-end encoded"}, {"tt", "time of day"}, {"tD", "duration"},
                              {"ti", "interval"}};

// The letter names the unit of a timestamp, u in "tsu:UTC". Returns how many of these units a
// second has; 0: not a unit.
double PerSecond(char letter) {
  constexpr std::pair<char, double> kUnits[] = {{'s', 1}, {'m', 1e3}, {'u', 1e6}, {'n', 1e9}};
  for (const auto& [name, unit] : kUnits) {
    if (name == letter) return unit;
  }
  return 0;
}

bool ReadParameters(absl::string_view format, ArrowType* type) {
  if (format == "tdm") {
    type->kind = Kind::kTime;
    type->per_second = 1e3;
    type->name = "date";
    return true;
  }
  if (absl::StartsWith(format, "ts") && format.size() > 2 && PerSecond(format[2]) > 0) {
    type->kind = Kind::kTime;
    type->per_second = PerSecond(format[2]);
    type->name = "timestamp";
    return true;
  }
  if (absl::ConsumePrefix(&format, "w:")) {
    type->kind = Kind::kFixedBytes;
    type->name = "binary";
    return absl::SimpleAtoi(format, &type->bytes) && type->bytes >= 0;
  }
  if (absl::ConsumePrefix(&format, "+w:")) {
    type->kind = Kind::kFixedList;
    type->name = "list";
    return absl::SimpleAtoi(format, &type->bytes) && type->bytes >= 0;
  }
  if (!absl::ConsumePrefix(&format, "d:")) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(format, ',');
  int bits = 128;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[1], &type->scale)) return false;
  if (parts.size() > 2 && !absl::SimpleAtoi(parts[2], &bits)) return false;
  type->kind = Kind::kDecimal;
  type->bytes = bits / 8;
  type->name = "decimal";
  constexpr int kMaxScale = 76;
  return (bits == 32 || bits == 64 || bits == 128) && std::abs(type->scale) <= kMaxScale;
}

float FromHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  float value = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                : exponent == 31 ? (fraction != 0 ? std::nanf("") : INFINITY)
                                 : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (half & 0x8000) != 0 ? -value : value;
}

absl::Status Damaged(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the array is damaged: ", what));
}

// The least number of buffers of an array of the type.
int64_t BuffersOf(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return 0;
    case Kind::kFixedList:
      return 1;
    case Kind::kText:
    case Kind::kLargeText:
    case Kind::kTextView:
    case Kind::kListView:
    case Kind::kLargeListView:
      return 3;
    default:
      return 2;
  }
}

}  // namespace

absl::StatusOr<ArrowType> ReadArrowType(const ArrowSchema& schema) {
  const absl::string_view format = schema.format;
  ArrowType type;
  const auto* const simple = std::find_if(std::begin(kSimple), std::end(kSimple),
                                          [&](const Simple& s) { return s.format == format; });
  if (simple != std::end(kSimple)) {
    type.kind = simple->kind;
    type.bytes = simple->bytes;
    type.name = simple->name;
  } else if (!ReadParameters(format, &type)) {
    const auto* const unread =
        std::find_if(std::begin(kUnread), std::end(kUnread),
                     [&](const Unread& u) { return absl::StartsWith(format, u.prefix); });
    return absl::InvalidArgumentError(absl::StrCat(
        "has type ", unread != std::end(kUnread) ? unread->name : format, ", expected ", kKnown));
  }
  if (type.is_list()) {
    if (schema.n_children != 1) return Damaged("a list without items");
    TANDEM_ASSIGN_OR_RETURN(ArrowType items, ReadArrowType(*schema.children[0]));
    if (items.values().is_list()) {
      return absl::InvalidArgumentError(absl::StrCat("has type list of lists, expected ", kKnown));
    }
    type.name = absl::StrCat("list of ", items.name);
    type.items = std::make_unique<ArrowType>(std::move(items));
  }
  if (schema.dictionary != nullptr) {
    if (type.kind != Kind::kInteger && type.kind != Kind::kUnsigned) {
      return Damaged("a dictionary whose numbers are no integers");
    }
    TANDEM_ASSIGN_OR_RETURN(ArrowType values, ReadArrowType(*schema.dictionary));
    type.name = absl::StrCat("dictionary of ", values.name);
    type.dictionary = std::make_unique<ArrowType>(std::move(values));
  }
  return type;
}

// ---- a column ---------------------------------------------------------------------------------

absl::Status ArrowColumn::Set(const ArrowType& type, const ArrowArray& array, int64_t offset) {
  type_ = &type;
  array_ = &array;
  offset_ = array.offset + offset;
  const bool has_values = type.kind != Kind::kNull && type.kind != Kind::kFixedList;
  const bool views = type.kind == Kind::kListView || type.kind == Kind::kLargeListView;
  if (array.n_buffers < BuffersOf(type.kind) ||
      (has_values && array.length > 0 && array.buffers[1] == nullptr) ||
      (views && array.length > 0 && array.buffers[2] == nullptr)) {
    return Damaged("a buffer is missing");
  }
  if (array.length > 0 && type.kind == Kind::kText) {
    text_end_ = static_cast<const int32_t*>(array.buffers[1])[array.offset + array.length];
  } else if (array.length > 0 && type.kind == Kind::kLargeText) {
    text_end_ = static_cast<const int64_t*>(array.buffers[1])[array.offset + array.length];
  }
  if (type.dictionary != nullptr) {
    if (array.dictionary == nullptr) return Damaged("its dictionary is missing");
    inner_ = std::make_unique<ArrowColumn>();
    return inner_->Set(*type.dictionary, *array.dictionary, 0);
  }
  if (!type.is_list()) return absl::OkStatus();
  if (array.n_children != 1) return Damaged("a list without items");
  inner_ = std::make_unique<ArrowColumn>();
  return inner_->Set(*type.items, *array.children[0], 0);
}

bool ArrowColumn::IsNull(int64_t row) const {
  if (type_->kind == Kind::kNull) return true;
  if (array_->null_count == 0 || array_->buffers[0] == nullptr) return false;
  const int64_t bit = offset_ + row;
  return ((static_cast<const uint8_t*>(array_->buffers[0])[bit / 8] >> (bit % 8)) & 1) == 0;
}

// The value of an integer type. An unsigned one beyond an int64 is returned as a negative number.
int64_t ArrowColumn::Integer(int64_t row) const {
  const bool is_signed = type_->kind == Kind::kInteger;
  switch (type_->bytes) {
    case 1:
      return is_signed ? Values<int8_t>(1)[row] : Values<uint8_t>(1)[row];
    case 2:
      return is_signed ? Values<int16_t>(1)[row] : Values<uint16_t>(1)[row];
    case 4:
      return is_signed ? Values<int32_t>(1)[row] : int64_t{Values<uint32_t>(1)[row]};
    default:
      return Values<int64_t>(1)[row];
  }
}

absl::Status ArrowColumn::Get(int64_t row, TypedCell* cell) {
  cell->kind = TypedCell::Kind::kNull;
  if (IsNull(row)) return absl::OkStatus();
  if (type_->dictionary != nullptr) {
    const int64_t at = Integer(row);
    if (at < 0 || at >= inner_->array_->length) return Damaged("no such entry of its dictionary");
    return inner_->Get(at, cell);
  }
  switch (type_->kind) {
    case Kind::kNull:
      return absl::OkStatus();
    case Kind::kBool: {
      const int64_t bit = offset_ + row;
      cell->kind = TypedCell::Kind::kBool;
      cell->integer = (static_cast<const uint8_t*>(array_->buffers[1])[bit / 8] >> (bit % 8)) & 1;
      return absl::OkStatus();
    }
    case Kind::kUnsigned:
    case Kind::kInteger:
      cell->integer = Integer(row);
      cell->kind = TypedCell::Kind::kInteger;
      if (type_->kind == Kind::kUnsigned && cell->integer < 0) {  // beyond an int64
        cell->owned = absl::StrCat(static_cast<uint64_t>(cell->integer));
        cell->text = cell->owned;
        cell->kind = TypedCell::Kind::kText;
      }
      return absl::OkStatus();
    case Kind::kHalf:
      cell->kind = TypedCell::Kind::kFloat;
      cell->number = FromHalf(Values<uint16_t>(1)[row]);
      return absl::OkStatus();
    case Kind::kFloat:
      cell->kind = TypedCell::Kind::kFloat;
      cell->number = Values<float>(1)[row];
      return absl::OkStatus();
    case Kind::kDouble:
      cell->kind = TypedCell::Kind::kDouble;
      cell->number = Values<double>(1)[row];
      return absl::OkStatus();
    case Kind::kDays:
      cell->kind = TypedCell::Kind::kTime;
      cell->number = 86400.0 * Values<int32_t>(1)[row];
      return absl::OkStatus();
    case Kind::kTime:
      cell->kind = TypedCell::Kind::kTime;
      cell->number = static_cast<double>(Values<int64_t>(1)[row]) / type_->per_second;
      return absl::OkStatus();
    case Kind::kDecimal:
      GetDecimal(row, cell);
      return absl::OkStatus();
    case Kind::kText:
    case Kind::kLargeText:
    case Kind::kTextView:
    case Kind::kFixedBytes:
      cell->kind = TypedCell::Kind::kText;
      return GetText(row, cell);
    default:
      cell->kind = TypedCell::Kind::kList;
      return GetList(row, cell);
  }
}

absl::Status ArrowColumn::GetText(int64_t row, TypedCell* cell) const {
  constexpr int64_t kMax = int64_t{1} << 31;
  int64_t begin = 0, end = 0;
  const void* data = nullptr;
  if (type_->kind == Kind::kFixedBytes) {
    data = array_->buffers[1];
    begin = (offset_ + row) * type_->bytes;
    end = begin + type_->bytes;
  } else if (type_->kind == Kind::kTextView) {
    // 16 bytes: the length, and the text itself or its first bytes, buffer and place.
    const char* const view = static_cast<const char*>(array_->buffers[1]) + (offset_ + row) * 16;
    int32_t size = 0, buffer = 0, at = 0;
    std::memcpy(&size, view, sizeof(size));
    if (size >= 0 && size <= 12) {
      cell->text = absl::string_view(view + sizeof(size), static_cast<size_t>(size));
      return absl::OkStatus();
    }
    std::memcpy(&buffer, view + 8, sizeof(buffer));
    std::memcpy(&at, view + 12, sizeof(at));
    const auto* const sizes = static_cast<const int64_t*>(array_->buffers[array_->n_buffers - 1]);
    begin = at;
    end = int64_t{at} + size;
    if (size < 0 || at < 0 || buffer < 0 || buffer >= array_->n_buffers - 3 || sizes == nullptr ||
        end > sizes[buffer]) {
      return Damaged("a text is nowhere");
    }
    data = array_->buffers[2 + buffer];
  } else if (type_->kind == Kind::kText) {
    begin = Values<int32_t>(1)[row];
    end = Values<int32_t>(1)[row + 1];
    data = array_->buffers[2];
  } else {
    begin = Values<int64_t>(1)[row];
    end = Values<int64_t>(1)[row + 1];
    data = array_->buffers[2];
  }
  const bool listed = type_->kind == Kind::kText || type_->kind == Kind::kLargeText;
  if (begin < 0 || end < begin || end - begin >= kMax || (listed && end > text_end_) ||
      (end > begin && data == nullptr)) {
    return Damaged("a text is nowhere");
  }
  cell->text = end == begin ? absl::string_view()
                            : absl::string_view(static_cast<const char*>(data) + begin,
                                                static_cast<size_t>(end - begin));
  return absl::OkStatus();
}

absl::Status ArrowColumn::GetList(int64_t row, TypedCell* cell) {
  int64_t begin = 0, end = 0;
  switch (type_->kind) {
    case Kind::kList:
      begin = Values<int32_t>(1)[row];
      end = Values<int32_t>(1)[row + 1];
      break;
    case Kind::kLargeList:
      begin = Values<int64_t>(1)[row];
      end = Values<int64_t>(1)[row + 1];
      break;
    case Kind::kListView:
      begin = Values<int32_t>(1)[row];
      end = begin + Values<int32_t>(2)[row];
      break;
    case Kind::kLargeListView:
      begin = Values<int64_t>(1)[row];
      // A damaged size must not overflow.
      end = begin + std::min(Values<int64_t>(2)[row], inner_->array_->length + 1);
      break;
    default:
      begin = (offset_ + row) * type_->bytes;
      end = begin + type_->bytes;
      break;
  }
  if (begin < 0 || end < begin || end > inner_->array_->length) {
    return Damaged("a list is beyond its items");
  }
  cell->items.resize(static_cast<size_t>(end - begin));
  for (int64_t i = begin; i < end; ++i) {
    TANDEM_RETURN_IF_ERROR(inner_->Get(i, &cell->items[static_cast<size_t>(i - begin)]));
  }
  return absl::OkStatus();
}

// Writes the text of a decimal: a whole number in two's complement whose last `scale` digits are
// behind the point. Leaves out a fraction of zeros.
void ArrowColumn::GetDecimal(int64_t row, TypedCell* cell) const {
  const char* const at = static_cast<const char*>(array_->buffers[1]) +
                         (offset_ + row) * static_cast<int64_t>(type_->bytes);
  __int128 value = 0;
  if (type_->bytes == 16) {
    std::memcpy(&value, at, sizeof(value));
  } else if (type_->bytes == 8) {
    int64_t narrow = 0;
    std::memcpy(&narrow, at, sizeof(narrow));
    value = narrow;
  } else {
    int32_t narrow = 0;
    std::memcpy(&narrow, at, sizeof(narrow));
    value = narrow;
  }
  const bool negative = value < 0;
  unsigned __int128 left = negative ? -static_cast<unsigned __int128>(value) : value;
  std::string digits;  // the last one first
  for (; left > 0; left /= 10)
    digits.push_back(static_cast<char>('0' + static_cast<int>(left % 10)));
  if (type_->scale < 0 && !digits.empty()) digits.insert(0, -type_->scale, '0');
  const auto behind = static_cast<size_t>(std::max(0, type_->scale));
  while (digits.size() <= behind) digits.push_back('0');
  std::string& text = cell->owned;
  text = negative ? "-" : "";
  text.append(digits.rbegin(), digits.rend() - static_cast<std::ptrdiff_t>(behind));
  const std::string fraction(digits.rend() - static_cast<std::ptrdiff_t>(behind), digits.rend());
  if (fraction.find_first_not_of('0') != std::string::npos) absl::StrAppend(&text, ".", fraction);
  cell->text = text;
  cell->kind = TypedCell::Kind::kText;
}

// ---- a stream ---------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<ArrowStream>> ArrowStream::Take(std::string name,
                                                               ArrowArrayStream* stream) {
  if (stream->release == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": the stream was read before, and can be read once"));
  }
  std::unique_ptr<ArrowStream> taken(new ArrowStream(std::move(name), stream));
  TANDEM_RETURN_IF_ERROR(taken->Init());
  return taken;
}

ArrowStream::ArrowStream(std::string name, ArrowArrayStream* stream)
    : name_(std::move(name)), stream_(*stream) {
  stream->release = nullptr;
}

ArrowStream::~ArrowStream() {
  Release();
  if (schema_.release != nullptr) schema_.release(&schema_);
  stream_.release(&stream_);
}

void ArrowStream::Release() {
  if (batch_.release != nullptr) batch_.release(&batch_);
  batch_ = {};
}

absl::Status ArrowStream::Error(int code) {
  const char* const text = stream_.get_last_error(&stream_);
  std::string line = text != nullptr ? text : std::strerror(code);
  line = line.substr(0, line.find('\n'));
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", line));
}

absl::Status ArrowStream::Init() {
  const int code = stream_.get_schema(&stream_, &schema_);
  if (code != 0) return Error(code);
  if (absl::string_view(schema_.format) != "+s") {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": the stream is one column, expected a table with named columns"));
  }
  for (int64_t i = 0; i < schema_.n_children; ++i) {
    const char* const column = schema_.children[i]->name;
    columns_.emplace_back(column != nullptr ? column : "");
    types_.push_back(ReadArrowType(*schema_.children[i]));
  }
  return absl::OkStatus();
}

absl::StatusOr<const ArrowType*> ArrowStream::TypeOf(size_t column) const {
  if (types_[column].ok()) return &*types_[column];
  return absl::InvalidArgumentError(
      absl::StrCat(name_, ": column '", columns_[column], "' ", types_[column].status().message()));
}

absl::StatusOr<bool> ArrowStream::Next(const std::vector<size_t>& wanted) {
  do {
    Release();
    const int code = stream_.get_next(&stream_, &batch_);
    if (code != 0) return Error(code);
    if (batch_.release == nullptr) return false;
  } while (batch_.length == 0);
  const auto refuse = [this](size_t column, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(
        name_, column < columns_.size() ? absl::StrCat(": column '", columns_[column], "'") : "",
        ": ", what));
  };
  if (batch_.n_children != schema_.n_children) {
    return refuse(columns_.size(), "a batch has other columns than the stream");
  }
  if (batch_.null_count > 0) return refuse(columns_.size(), "a whole row is null");
  read_.resize(wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(const ArrowType* const type, TypeOf(wanted[i]));
    const ArrowArray& array = *batch_.children[wanted[i]];
    if (array.length < batch_.offset + batch_.length) {
      return refuse(wanted[i], "it has fewer values than the batch has rows");
    }
    const absl::Status set = read_[i].Set(*type, array, batch_.offset);
    if (!set.ok()) return refuse(wanted[i], set.message());
  }
  return true;
}

}  // namespace tandem::data
