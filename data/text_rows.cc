#include "data/text_rows.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace tandem::data {

void TextRows::Enter(const Block& block) {
  block_ = block;
  entering_ = true;
}

absl::StatusOr<bool> TextRows::Next(absl::string_view* line) {
  bool more = false;
  if (entering_) {
    entering_ = false;
    TANDEM_ASSIGN_OR_RETURN(more, FirstOfBlock(line));
  } else if (lines_->next_offset() < block_.end) {
    TANDEM_ASSIGN_OR_RETURN(more, NextRow(line));
  }
  return more && lines_->line_offset() < block_.end;
}

absl::StatusOr<bool> TextRows::NextRow(absl::string_view* line) {
  TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Next(line));
  if (!more) return false;
  return RowFrom(line);
}

// The row that begins with the line that was read last. If this line is no row, the next row.
absl::StatusOr<bool> TextRows::RowFrom(absl::string_view* line) {
  while (!parser()->IsRow(*line)) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Next(line));
    if (!more) return false;
  }
  if (parser()->EndsInQuotes(*line, false)) TANDEM_RETURN_IF_ERROR(JoinQuoted(line));
  return true;
}

// Joins lines until the quote ends. If the quote does not end, the row is its first line, which the
// parser then refuses.
absl::Status TextRows::JoinQuoted(absl::string_view* line) {
  for (bool inside = true; inside;) {
    const size_t before = line->size();
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Extend(line));
    if (!more) {
      lines_->Retract(line);
      return absl::OkStatus();
    }
    inside = parser()->EndsInQuotes(line->substr(before), true);
  }
  return absl::OkStatus();
}

// Reads the first row. The parser must see the first line before any row, wherever the block is.
absl::StatusOr<bool> TextRows::Start(absl::string_view* line) {
  started_ = true;
  TANDEM_ASSIGN_OR_RETURN(has_rows_, First(line));
  first_row_ = lines_->line_offset();
  first_row_line_ = lines_->line_number();
  return has_rows_;
}

absl::StatusOr<bool> TextRows::First(absl::string_view* line) {
  TANDEM_ASSIGN_OR_RETURN(const bool more, NextRow(line));
  if (!more) return false;
  first_line_ = std::string(*line);
  if (absl::Status status = parser()->StartFile(*line); !status.ok()) {
    return lines_->Error(status.message());
  }
  return parser()->has_header() ? NextRow(line) : true;
}

// ---- rows in the middle of a file -------------------------------------------------------------

absl::StatusOr<bool> TextRows::FirstOfBlock(absl::string_view* line) {
  if (lines_->seekable()) lines_->set_limit(block_.end);
  if (!started_) {
    TANDEM_RETURN_IF_ERROR(Start(line).status());
    if (has_rows_ && block_.begin <= first_row_) return true;
    if (!lines_->seekable()) {  // all rows before are unpacked, too
      bool more = has_rows_;
      while (more && lines_->line_offset() < block_.begin) {
        TANDEM_ASSIGN_OR_RETURN(more, NextRow(line));
      }
      return more;
    }
  }
  if (!has_rows_) return false;
  if (block_.begin <= first_row_) {
    TANDEM_RETURN_IF_ERROR(lines_->Seek(first_row_, first_row_line_));
    return NextRow(line);
  }
  if (block_.line == 0) return RowAfter(block_.begin, line);
  TANDEM_RETURN_IF_ERROR(lines_->Seek(block_.begin, block_.line));
  return NextRow(line);
}

absl::StatusOr<bool> TextRows::ReadAt(const Block& block, int64_t offset, int64_t line_number,
                                      absl::string_view* line) {
  Enter(block);
  entering_ = false;
  TANDEM_ASSIGN_OR_RETURN(const bool any, Start(line));
  if (!any) return false;
  TANDEM_RETURN_IF_ERROR(lines_->Seek(offset, line_number));
  lines_->set_limit(block.end);
  return NextRow(line);
}

// Reads the first row that begins at `offset` or later. The first line there may be inside a quoted
// cell of an earlier row. To find out, reads from an earlier place twice: once as if the place were
// inside a quoted cell, and once as if it were not. After a few quotes both find the same row. If
// they do not, moves the place back, at most to the first row of the file.
absl::StatusOr<bool> TextRows::RowAfter(int64_t offset, absl::string_view* line) {
  if (!parser()->spans_lines()) {
    TANDEM_RETURN_IF_ERROR(lines_->SeekLine(offset));
    return NextRow(line);
  }
  constexpr int64_t kFirstLook = int64_t{4} << 10;
  for (int64_t back = kFirstLook;; back *= 8) {
    const int64_t from = std::max(first_row_, offset - back);
    TANDEM_ASSIGN_OR_RETURN(const int64_t row, FindRow(from, /*inside=*/false, offset));
    if (from > first_row_) {
      TANDEM_ASSIGN_OR_RETURN(const int64_t other, FindRow(from, /*inside=*/true, offset));
      if (other != row) continue;
    }
    if (row == kNoEnd) return false;
    TANDEM_RETURN_IF_ERROR(lines_->Seek(row, 0));
    return NextRow(line);
  }
}

// Returns the byte at which the first row at `offset` or later begins; kNoEnd: there is none. Reads
// from the first line at byte `from` or later. `inside`: assumes that this line begins inside a
// quoted cell, unless the cell would then be longer than a row may be.
absl::StatusOr<int64_t> TextRows::FindRow(int64_t from, bool inside, int64_t offset) {
  const bool at_first = from == first_row_;
  TANDEM_RETURN_IF_ERROR(at_first ? lines_->Seek(from, first_row_line_) : lines_->SeekLine(from));
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(bool more, lines_->Next(&line));
  if (!more) return kNoEnd;
  bool leaves = false;
  if (inside) {
    TANDEM_ASSIGN_OR_RETURN(leaves, LeaveQuotes(&line));
    if (!leaves) lines_->Retract(&line);
  }
  if (leaves) {
    TANDEM_ASSIGN_OR_RETURN(more, NextRow(&line));
  } else {
    TANDEM_ASSIGN_OR_RETURN(more, RowFrom(&line));
  }
  while (more && lines_->line_offset() < offset) {
    TANDEM_ASSIGN_OR_RETURN(more, NextRow(&line));
  }
  return more ? lines_->line_offset() : kNoEnd;
}

// If the line that was read last is inside a quoted cell: joins lines to it until the cell has
// ended. False if it does not end within the length of a row.
absl::StatusOr<bool> TextRows::LeaveQuotes(absl::string_view* line) {
  bool inside = parser()->EndsInQuotes(*line, true);
  while (inside) {
    const size_t before = line->size();
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Extend(line));
    if (!more) return false;
    inside = parser()->EndsInQuotes(line->substr(before), true);
  }
  return true;
}

double TextRows::StoredBytesRead(int64_t stored) const {
  // Progress counts bytes that were read ahead, too: as many as a small sample.
  return seekable() ? static_cast<double>(lines_->next_offset())
                    : lines_->Progress() * static_cast<double>(stored);
}

std::vector<DealtFile> TextRows::Pieces(int64_t stored) const {
  DealtFile file;
  file.whole = !seekable();
  file.unpacked = static_cast<double>(stored);
  if (!file.whole) file.bytes.end = stored;
  return {file};
}

absl::StatusOr<std::unique_ptr<RowFile>> RowParser::Open(const std::string& path) {
  return OpenText(path, this);
}

absl::StatusOr<std::unique_ptr<RowFile>> OpenText(const std::string& path, RowParser* parser) {
  TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(path));
  return std::make_unique<TextRows>(std::move(lines), parser);
}

}  // namespace tandem::data
