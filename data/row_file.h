// RowFile reads the rows of one open file of any format. A row is bytes that its RowParser parses:
// the line of a text file (data/text_rows.h), the cells of a Parquet file (data/parquet_rows.h), or
// a cached row (data/cache_rows.h).
//
// Each row has a place in its file, an increasing number: in text the byte at which the row begins,
// in Parquet files the number of the row from 0. A cache has the places of its data file. Blocks,
// borders and resumed runs name rows by places.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_ROW_FILE_H_
#define TANDEM_DATA_ROW_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/deal_blocks.h"

namespace tandem::data {

class RowParser;  // data/row.h
struct Row;

class RowFile {
 public:
  // `parser` must outlive this.
  explicit RowFile(RowParser* parser) : parser_(parser) {}
  virtual ~RowFile() = default;

  // From now on Next returns the rows of `block`, which must be a block of this file. Without a
  // block Next returns all rows. A file that is not seekable() has one block at most.
  virtual void Enter(const Block& block) = 0;
  // The next row. False at the end.
  virtual absl::StatusOr<bool> Next(absl::string_view* row) = 0;
  // Enters `block` at the row with the place `offset`, in line `line_number`, and reads this row.
  // False if there is none. Requires: seekable().
  virtual absl::StatusOr<bool> ReadAt(const Block& block, int64_t offset, int64_t line_number,
                                      absl::string_view* row) = 0;
  // Skips `rows` rows, or all that there are; returns how many.
  virtual absl::StatusOr<int64_t> Skip(int64_t rows);

  virtual const std::string& name() const = 0;
  // The place of the row that was returned last, and its number for messages, from 1: in text the
  // number of its first line, or 0 if the file does not know it.
  virtual int64_t offset() const = 0;
  virtual int64_t line() const = 0;
  // "NAME:LINE: WHAT" about that row.
  virtual absl::Status Error(absl::string_view what) const;
  // Whether rows can be read from any place on.
  virtual bool seekable() const { return true; }
  // The argument of RowParser::StartFile, for another parser of this file. Empty before the first
  // row.
  virtual const std::string& first_line() const = 0;

  // The number of rows, if the file knows it without reading them; else -1.
  virtual int64_t rows() const { return -1; }
  // How many of the file's `stored` bytes the rows so far take, for estimates.
  virtual double StoredBytesRead(int64_t /*stored*/) const { return 0; }
  // The parts of a file of `stored` bytes that data.deal: BLOCKS deals to workers. A part that is
  // `whole` goes to one worker; others may be cut between rows.
  virtual std::vector<DealtFile> Pieces(int64_t stored) const = 0;
  // The name of a whole piece, for messages.
  virtual absl::string_view whole_piece() const { return "compressed file"; }

  // Parses the row that was returned last. Errors name file and line.
  absl::Status Parse(absl::string_view row, Row* parsed) const;

 protected:
  RowParser* parser() const { return parser_; }

 private:
  RowParser* const parser_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_FILE_H_
