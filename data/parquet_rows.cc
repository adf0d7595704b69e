#include "data/parquet_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/row.h"
#include "job/message_text.h"

namespace tandem::data {
namespace {

using Role = ParquetColumn::Role;

// Refuses a type that the role of the column cannot use.
absl::Status CheckType(const ParquetColumn& column, const ArrowType& type) {
  const auto refuse = [&](absl::string_view expected, absl::string_view hint) {
    return absl::InvalidArgumentError(absl::StrCat("column ", Quote(column.name), " has type ",
                                                   type.name, ", expected ", expected,
                                                   "; hint: ", hint));
  };
  const ArrowType& values = type.values();
  if (values.is_list() && column.role == Role::kId) {
    return refuse("one value a row", absl::StrCat("`column { name: \"", column.name,
                                                  "\" pooling: SUM }` takes all values of a list"));
  }
  if (values.is_list() && column.role != Role::kIds) {
    return refuse("one value a row", "lists are ids, in data.columns.categorical");
  }
  if (!values.is_list() && column.role == Role::kIds && !column.splits) {
    return refuse("a list", "`separator` splits a text; without `pooling` there is one id a row");
  }
  const ArrowType& items = values.is_list() ? values.items->values() : values;
  if (items.kind == ArrowType::Kind::kHalf && column.role != Role::kNumber) {
    return refuse("text, an integer, a float or a double",
                  "16-bit floats have no text that other programs agree on");
  }
  const bool fraction =
      items.kind == ArrowType::Kind::kBool || items.kind == ArrowType::Kind::kHalf ||
      items.kind == ArrowType::Kind::kFloat || items.kind == ArrowType::Kind::kDouble ||
      items.kind == ArrowType::Kind::kDecimal;
  if (column.dated && fraction) {
    return refuse("text, an integer or a time", "`date` is the form of a text such as 20240131");
  }
  const bool time = items.is_time();
  if (time && column.role != Role::kNumber) {
    return refuse("text or a number",
                  "times have no text of their own: make it in the file, or read the column as one "
                  "of data.columns.numeric");
  }
  return absl::OkStatus();
}

class ParquetRows final : public RowFile {
 public:
  ParquetRows(std::unique_ptr<ArrowFile> file, RowParser* parser)
      : RowFile(parser), file_(std::move(file)) {
    starts_.push_back(0);
    for (const int64_t rows : file_->block_rows()) starts_.push_back(starts_.back() + rows);
    if (rows() > 0) first_line_ = "cells with types";
  }

  absl::Status Init(const std::vector<ParquetColumn>& columns) {
    for (const ParquetColumn& column : columns) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<size_t> at, Find(column));
      if (!at.has_value()) {
        cells_.emplace_back();
        continue;
      }
      const auto known = std::find(wanted_.begin(), wanted_.end(), *at);
      cells_.emplace_back(static_cast<size_t>(known - wanted_.begin()));
      if (known == wanted_.end()) wanted_.push_back(*at);
    }
    return absl::OkStatus();
  }

  void Enter(const Block& block) override {
    next_ = block.begin;
    end_ = std::min(block.end, starts_.back());
  }

  absl::StatusOr<bool> Next(absl::string_view* row) override {
    if (next_ >= end_) return false;
    if (!started_) {
      started_ = true;
      TANDEM_RETURN_IF_ERROR(parser()->StartFile(first_line()));
    }
    TANDEM_RETURN_IF_ERROR(GoTo(next_));
    record_.clear();
    for (const std::optional<size_t>& cell : cells_) {
      cell_.kind = TypedCell::Kind::kNull;
      if (cell.has_value()) {
        const absl::Status got = stream_->column(*cell).Get(next_ - batch_, &cell_);
        if (!got.ok()) {
          return absl::InvalidArgumentError(absl::StrCat(
              name(), ": column ", Quote(file_->columns()[wanted_[*cell]]), ": ", got.message()));
        }
      }
      AppendCell(cell_, &record_);
    }
    *row = record_;
    last_ = next_++;
    return true;
  }

  absl::StatusOr<bool> ReadAt(const Block& block, int64_t offset, int64_t /*line_number*/,
                              absl::string_view* row) override {
    Enter(block);
    next_ = offset;
    return Next(row);
  }

  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    const int64_t skipped = std::min(rows, end_ - std::min(end_, next_));
    next_ += skipped;
    return skipped;
  }

  const std::string& name() const override { return file_->path(); }
  int64_t offset() const override { return last_; }
  int64_t line() const override { return last_ + 1; }
  const std::string& first_line() const override { return first_line_; }
  int64_t rows() const override { return starts_.back(); }
  std::vector<DealtFile> Pieces(int64_t /*stored*/) const override {
    std::vector<DealtFile> pieces;
    for (size_t i = 0; i + 1 < starts_.size(); ++i) {
      DealtFile& piece = pieces.emplace_back();
      piece.bytes.begin = starts_[i];
      piece.bytes.end = starts_[i + 1];
      piece.whole = true;
      piece.unpacked = static_cast<double>(starts_[i + 1] - starts_[i]);
    }
    return pieces;
  }
  absl::string_view whole_piece() const override { return "row group"; }

 private:
  // The column's place among those of the file; nullopt: the file lacks an optional column.
  absl::StatusOr<std::optional<size_t>> Find(const ParquetColumn& column) const {
    const std::vector<std::string>& names = file_->columns();
    const auto found = std::find(names.begin(), names.end(), column.name);
    if (found == names.end() && column.optional) return std::nullopt;
    const auto refuse = [this](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat(name(), ": ", what));
    };
    if (found == names.end()) {
      const auto nearest = job::Nearest(column.name, {names.begin(), names.end()});
      return refuse(absl::StrCat("there is no column ", Quote(column.name),
                                 nearest.has_value()
                                     ? absl::StrCat("; did you mean ", Quote(*nearest), "?")
                                     : absl::StrCat(", the columns are ", Shown(names),
                                                    "; hint: names are compared byte by byte")));
    }
    if (std::count(found, names.end(), column.name) > 1) {
      return refuse(absl::StrCat("there are several columns ", Quote(column.name),
                                 ", expected one; hint: give them names of their own"));
    }
    const auto at = static_cast<size_t>(found - names.begin());
    TANDEM_ASSIGN_OR_RETURN(const ArrowType* const type, file_->TypeOf(at));
    const absl::Status checked = CheckType(column, *type);
    if (!checked.ok()) return refuse(checked.message());
    return at;
  }

  static std::string Shown(const std::vector<std::string>& names) {
    constexpr size_t kShown = 8;
    std::vector<std::string> shown;
    for (const std::string& name : names) {
      if (shown.size() == kShown) break;
      shown.push_back(Quote(name));
    }
    return absl::StrCat(
        absl::StrJoin(shown, ", "),
        names.size() > kShown ? absl::StrCat(" and ", names.size() - kShown, " more") : "");
  }

  // Reads on until the batch has row `row`.
  absl::Status GoTo(int64_t row) {
    if (row >= batch_ && row < batch_ + batch_rows_) return absl::OkStatus();
    if (stream_ == nullptr || row < batch_ || row >= starts_[group_ + 1]) {
      const auto after = std::upper_bound(starts_.begin(), starts_.end(), row);
      group_ = static_cast<size_t>(after - starts_.begin()) - 1;
      TANDEM_ASSIGN_OR_RETURN(stream_, file_->Read(group_, wanted_));
      batch_ = starts_[group_];
      batch_rows_ = 0;
    }
    std::vector<size_t> all(wanted_.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = i;
    while (row >= batch_ + batch_rows_) {
      batch_ += batch_rows_;
      TANDEM_ASSIGN_OR_RETURN(const bool more, stream_->Next(all));
      if (!more) {
        return absl::DataLossError(absl::StrCat(name(), ": ", whole_piece(), " ", group_, " has ",
                                                batch_ - starts_[group_], " rows, expected ",
                                                starts_[group_ + 1] - starts_[group_],
                                                "; hint: write or copy the file again"));
      }
      batch_rows_ = stream_->rows();
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<ArrowFile> file_;
  std::string first_line_;
  std::vector<int64_t> starts_;               // the first row of each row group, and the end
  std::vector<size_t> wanted_;                // columns of the file
  std::vector<std::optional<size_t>> cells_;  // the cells of a row: index in wanted_
  std::unique_ptr<ArrowStream> stream_;       // reads row group group_
  size_t group_ = 0;
  int64_t batch_ = 0, batch_rows_ = 0;          // first row and size of the stream's batch
  int64_t next_ = 0, end_ = kNoEnd, last_ = 0;  // rows
  bool started_ = false;
  TypedCell cell_;
  std::string record_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RowFile>> OpenParquet(const std::string& path,
                                                     const std::vector<ParquetColumn>& columns,
                                                     RowParser* parser) {
  TANDEM_ASSIGN_OR_RETURN(auto file, ArrowFile::Open(path));
  auto rows = std::make_unique<ParquetRows>(std::move(file), parser);
  TANDEM_RETURN_IF_ERROR(rows->Init(columns));
  rows->Enter(Block());
  return rows;
}

}  // namespace tandem::data
