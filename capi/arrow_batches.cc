#include "capi/arrow_batches.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::capi {
namespace {

using data::ArrowType;
using data::TypedCell;
using As = ArrowBatches::As;

bool IsText(const ArrowType& type) {
  using Kind = ArrowType::Kind;
  return type.kind == Kind::kText || type.kind == Kind::kLargeText ||
         type.kind == Kind::kTextView || type.kind == Kind::kFixedBytes;
}

// Refuses a type that cannot be read in this way.
absl::Status CheckType(const ArrowType& type, As as) {
  const auto refuse = [&](absl::string_view expected, absl::string_view hint) {
    return absl::InvalidArgumentError(
        absl::StrCat("has type ", type.name, ", expected ", expected, "; hint: ", hint));
  };
  const ArrowType& values = type.values();
  const ArrowType& item = values.is_list() ? values.items->values() : values;
  if (as == As::kNumbers) {
    if (!IsText(item) && !values.is_list()) return absl::OkStatus();
    return refuse("a number, a boolean or a date",
                  "a column of ids has the name of a field of the job; leave other columns out");
  }
  if (values.is_list() && as == As::kId) {
    return refuse("one value a row", "a tandem.DataLoader takes lists of ids");
  }
  if (item.is_time()) {
    return refuse("text or a number",
                  "times have no text of their own; make it in the query or frame, as strftime "
                  "does");
  }
  if (item.kind == ArrowType::Kind::kHalf) {
    return refuse("text or a number", "convert it to integers or text in the query or frame");
  }
  return absl::OkStatus();
}

float NumberOf(const TypedCell& cell) {
  constexpr double kSecondsOfDay = 86400;
  if (cell.kind == TypedCell::Kind::kTime) return static_cast<float>(cell.number / kSecondsOfDay);
  double number = std::numeric_limits<double>::quiet_NaN();
  if (cell.kind == TypedCell::Kind::kText) {  // a decimal, or an integer beyond an int64
    (void)data::ParseNumber(cell.text, &number);
    return static_cast<float>(number);
  }
  return static_cast<float>(cell.Number());
}

}  // namespace

absl::Status ArrowBatches::Read(size_t column, As as) {
  const std::string& name = names()[column];
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": column ", data::Quote(name), " ", what));
  };
  if (begun_) return refuse("is chosen after rows were read; choose all columns before");
  if (Find(column) != nullptr) return refuse("is chosen twice");
  if (std::count(names().begin(), names().end(), name) > 1) {
    return refuse("is there several times, expected once; hint: give columns names of their own");
  }
  TANDEM_ASSIGN_OR_RETURN(const ArrowType* const type, stream_->TypeOf(column));
  const absl::Status checked = CheckType(*type, as);
  if (!checked.ok()) return refuse(checked.message());
  columns_.push_back({column, as, data::FieldHash(name), type->values().is_list(), {}, {}, {}});
  wanted_.push_back(column);
  return absl::OkStatus();
}

const ArrowBatches::Column* ArrowBatches::Find(size_t column) const {
  const auto found = std::find(wanted_.begin(), wanted_.end(), column);
  return found == wanted_.end() ? nullptr : &columns_[found - wanted_.begin()];
}

absl::StatusOr<int64_t> ArrowBatches::Advance(int64_t most, bool keep) {
  begun_ = true;
  for (Column& column : columns_) {
    column.numbers.clear();
    column.ids.clear();
    column.offsets.assign(column.is_list ? 1 : 0, 0);
  }
  TANDEM_RETURN_IF_ERROR(failed_);
  absl::StatusOr<int64_t> read = ReadRows(most, keep);
  failed_ = read.status();
  if (!failed_.ok()) stream_.reset();
  return read;
}

absl::StatusOr<int64_t> ArrowBatches::ReadRows(int64_t most, bool keep) {
  int64_t done = 0;
  while (done < most && stream_ != nullptr) {
    if (next_ == rows_) {
      earlier_ += rows_;
      next_ = rows_ = 0;
      TANDEM_ASSIGN_OR_RETURN(const bool more, stream_->Next(wanted_));
      if (!more) {
        stream_.reset();
        break;
      }
      rows_ = stream_->rows();
    }
    const int64_t end = next_ + std::min(rows_ - next_, most - done);
    for (size_t i = 0; keep && i < columns_.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Append(i, next_, end));
    }
    done += end - next_;
    next_ = end;
  }
  return done;
}

absl::Status ArrowBatches::Append(size_t i, int64_t begin, int64_t end) {
  Column& column = columns_[i];
  data::ArrowColumn& cells = stream_->column(i);
  for (int64_t row = begin; row < end; ++row) {
    absl::Status status = cells.Get(row, &cell_);
    if (status.ok()) status = AppendCell(&column, &cell_);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(source_, ": row ", earlier_ + row, ", column ",
                                                     data::Quote(names()[column.at]), ": ",
                                                     status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status ArrowBatches::AppendCell(Column* column, TypedCell* cell) {
  if (column->as == As::kNumbers) {
    column->numbers.push_back(NumberOf(*cell));
    return absl::OkStatus();
  }
  if (!column->is_list) return AppendId(column, cell);
  if (cell->kind == TypedCell::Kind::kList) {
    for (TypedCell& item : cell->items) {
      if (!item.IsMissing()) TANDEM_RETURN_IF_ERROR(AppendId(column, &item));
    }
  }
  // As in a file, a row without values has the id of a missing one.
  if (static_cast<int64_t>(column->ids.size()) == column->offsets.back()) {
    column->ids.push_back(static_cast<int64_t>(column->hash.missing()));
  }
  column->offsets.push_back(static_cast<int64_t>(column->ids.size()));
  return absl::OkStatus();
}

absl::Status ArrowBatches::AppendId(Column* column, TypedCell* cell) {
  uint64_t id = column->hash.missing();
  if (column->as == As::kRawIds && cell->kind == TypedCell::Kind::kInteger) {
    id = static_cast<uint64_t>(cell->integer);
  } else if (!cell->IsMissing()) {
    const absl::string_view text = cell->Text(&text_);
    if (column->as != As::kRawIds) {
      id = column->hash.Key(text);
    } else if (!data::ParseRawId(text, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the id is ", data::Quote(text),
                       ", expected a whole number of 64 bits; hint: hashed ids take any text"));
    }
  }
  column->ids.push_back(static_cast<int64_t>(id));
  return absl::OkStatus();
}

}  // namespace tandem::capi
