// TextRows reads the rows of a text file. A row is a line, or several lines if a quoted cell
// continues in the next line.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_TEXT_ROWS_H_
#define TANDEM_DATA_TEXT_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/line_reader.h"
#include "data/row.h"
#include "data/row_file.h"

namespace tandem::data {

class TextRows final : public RowFile {
 public:
  // `lines` may be bytes in memory, in tests and fuzzing. `parser` must outlive this.
  TextRows(std::unique_ptr<LineReader> lines, RowParser* parser)
      : RowFile(parser), lines_(std::move(lines)) {}

  void Enter(const Block& block) override;
  absl::StatusOr<bool> Next(absl::string_view* line) override;
  absl::StatusOr<bool> ReadAt(const Block& block, int64_t offset, int64_t line_number,
                              absl::string_view* line) override;

  const std::string& name() const override { return lines_->name(); }
  int64_t offset() const override { return lines_->line_offset(); }
  int64_t line() const override { return lines_->line_number(); }
  absl::Status Error(absl::string_view what) const override { return lines_->Error(what); }
  // A compressed file is read from its beginning.
  bool seekable() const override { return lines_->seekable(); }
  // The first line, header or not.
  const std::string& first_line() const override { return first_line_; }
  double StoredBytesRead(int64_t stored) const override;
  std::vector<DealtFile> Pieces(int64_t stored) const override;

 private:
  absl::StatusOr<bool> NextRow(absl::string_view* line);
  absl::StatusOr<bool> RowFrom(absl::string_view* line);
  absl::StatusOr<bool> Start(absl::string_view* line);
  absl::StatusOr<bool> First(absl::string_view* line);
  absl::StatusOr<bool> FirstOfBlock(absl::string_view* line);
  absl::StatusOr<bool> RowAfter(int64_t offset, absl::string_view* line);
  absl::StatusOr<int64_t> FindRow(int64_t from, bool inside, int64_t offset);
  absl::StatusOr<bool> LeaveQuotes(absl::string_view* line);
  absl::Status JoinQuoted(absl::string_view* line);

  const std::unique_ptr<LineReader> lines_;
  Block block_;
  bool entering_ = true;  // no row of block_ was read
  bool started_ = false;  // the parser has seen the first line
  std::string first_line_;
  bool has_rows_ = false;
  int64_t first_row_ = 0, first_row_line_ = 0;  // byte and line where the first row begins
};

// Opens a text file, plain or compressed. Errors name the file.
absl::StatusOr<std::unique_ptr<RowFile>> OpenText(const std::string& path, RowParser* parser);

}  // namespace tandem::data

#endif  // TANDEM_DATA_TEXT_ROWS_H_
