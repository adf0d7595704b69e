// LineReader gives the lines of a text file, plain or compressed. LineReader also makes the checks
// that every text format needs: a limit on the length of a line, no NUL bytes, and no file that
// ends inside its compressed data.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_LINE_READER_H_
#define TANDEM_DATA_LINE_READER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/byte_source.h"

namespace tandem::data {

inline constexpr size_t kMaxLineBytes = size_t{1} << 20;

class LineReader {
 public:
  // `name` appears in messages.
  LineReader(std::string name, std::unique_ptr<ByteSource> source);

  // The next line, without its line end ("\n" or "\r\n") and, for the first line, without a byte
  // order mark. False at the end of the file. `line` is valid until the next call. Empty lines are
  // skipped but counted.
  absl::StatusOr<bool> Next(absl::string_view* line);

  // Joins the next line of the file, with the line end between them, to the line that was returned
  // last. False if the file ends here, or if the whole would be too long for a line. In both cases
  // `line` may move in memory.
  absl::StatusOr<bool> Extend(absl::string_view* line);
  // Undoes all calls of Extend: Next continues with the first line that they joined.
  void Retract(absl::string_view* line);

  // Continues at this byte of the file, where line `line_number` begins (0: the number is not
  // known). Fails unless seekable().
  absl::Status Seek(int64_t offset, int64_t line_number);
  // Continues at the first line that begins at this byte or later. Fails unless seekable().
  absl::Status SeekLine(int64_t offset);
  bool seekable() const { return source_->seekable(); }
  // Bytes from `offset` on are read in small pieces, since few of them are needed.
  void set_limit(int64_t offset) { limit_ = offset; }

  // INVALID_ARGUMENT "NAME:LINE: WHAT" about the line that was returned last.
  absl::Status Error(absl::string_view what) const;
  absl::Status FileError(absl::string_view what) const;  // "NAME: WHAT"

  const std::string& name() const { return name_; }
  // The number of the line that was returned last, from 1; 0: not known. Joined lines have the
  // number of the first.
  int64_t line_number() const { return counted_from_ == 0 ? line_number_ : 0; }
  // How many (unpacked) bytes of the file precede the line that was returned last.
  int64_t line_offset() const { return buffer_offset_ + static_cast<int64_t>(line_begin_); }
  // How many precede the next line.
  int64_t next_offset() const { return buffer_offset_ + static_cast<int64_t>(begin_); }
  double Progress() const { return source_->Progress(); }

 private:
  // The line that begins at begin_, empty or not. The caller knows that its first `known` bytes
  // hold no line end. False if there are no bytes after these.
  absl::StatusOr<bool> NextRaw(size_t known, absl::string_view* line);
  absl::StatusOr<bool> Fill();  // reads more bytes; false at the end
  size_t BytesToRead(size_t room);
  // "NAME:LINE" of the line that was returned last. If its number is not known, the lines before it
  // are counted; "NAME, byte OFFSET" if that would take long.
  std::string Place() const;
  // The line, whose LF is already removed, in the form in which Next returns it.
  absl::string_view Bare(absl::string_view line) const;
  // The first `bytes` bytes of the line that was returned last, in the form in which Next returns
  // it.
  absl::string_view Stored(size_t bytes) const;
  absl::Status CheckText(absl::string_view line) const;
  absl::Status CheckStart(absl::string_view line) const;  // checks the start of the file

  const std::string name_;
  const std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  int64_t buffer_offset_ = 0;   // bytes of the file before buffer_[0]
  size_t begin_ = 0, end_ = 0;  // unread bytes are buffer_[begin_, end_)
  size_t line_begin_ = 0;   // the last returned line, with its end, is buffer_[line_begin_, begin_)
  size_t first_bytes_ = 0;  // bytes of that line without the lines that Extend has joined
  int64_t line_number_ = 0;
  int64_t lines_read_ = 0;
  // If the numbers of lines are not known: the line that begins at this byte counts as line 2, so
  // that no line counts as the first of the file. Else 0.
  int64_t counted_from_ = 0;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
  size_t next_read_ = 0;     // size of the next read; 0: the first one since the start or a Seek
  bool past_limit_ = false;  // the last read was beyond limit_
  bool at_end_ = false;      // the last returned line ends the file without a line end
};

// Opens the file and constructs its LineReader. Errors name the file.
absl::StatusOr<std::unique_ptr<LineReader>> OpenLines(const std::string& path);

}  // namespace tandem::data

#endif  // TANDEM_DATA_LINE_READER_H_
