// Lines of a text file, plain or compressed, with the checks every text format needs: a bound on the
// length of a line, no NUL bytes, and no file that ends in the middle of its compressed data.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_LINE_READER_H_
#define TANDEM_DATA_LINE_READER_H_

#include <cstddef>
#include <cstdint>
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

  // The next line, without its end ("\n" or "\r\n") and, on the first line, without a byte order
  // mark; false at the end of the file. `line` is valid until the next call. Lines that are empty
  // are skipped, but counted.
  absl::StatusOr<bool> Next(absl::string_view* line);

  // Adds the line below, after the line end as it is in the file, to the line last returned. False if the
  // file ends here, or the whole would be longer than a line may be. Either moves `line`.
  absl::StatusOr<bool> Extend(absl::string_view* line);
  // Takes back all that Extend has added: Next goes on from there.
  void Retract(absl::string_view* line);

  // INVALID_ARGUMENT "name:line: what" about the line last returned.
  absl::Status Error(absl::string_view what) const;
  absl::Status FileError(absl::string_view what) const;  // "name: what"

  const std::string& name() const { return name_; }
  int64_t line_number() const {
    return line_number_;
  }  // from 1; the first one of those put together
  double Progress() const { return source_->Progress(); }

 private:
  // The line from begin_ on, empty or not, which does not end within the first `known` bytes. False if
  // there are no more bytes than these.
  absl::StatusOr<bool> NextRaw(size_t known, absl::string_view* line);
  absl::StatusOr<bool> Fill();  // more bytes; false at the end
  // The line, which is without its LF, as it is returned.
  absl::string_view Bare(absl::string_view line) const;
  absl::string_view Stored(
      size_t bytes) const;  // the line last returned, or the first of its bytes
  absl::Status CheckText(absl::string_view line) const;
  absl::Status CheckStart(absl::string_view line) const;  // of the file

  const std::string name_;
  const std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes are buffer_[begin_, end_)
  size_t line_begin_ = 0;   // the line last returned is buffer_[line_begin_, begin_), with its end
  size_t first_bytes_ = 0;  // of it without what Extend has added
  int64_t line_number_ = 0;
  int64_t lines_read_ = 0;
  bool at_end_ = false;  // the line last returned is the last one, and has no line end
};

// OpenFile and LineReader in one; errors name the file.
absl::StatusOr<std::unique_ptr<LineReader>> OpenLines(const std::string& path);

}  // namespace tandem::data

#endif  // TANDEM_DATA_LINE_READER_H_
