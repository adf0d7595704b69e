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

  // INVALID_ARGUMENT "name:line: what" about the line last returned.
  absl::Status Error(absl::string_view what) const;
  absl::Status FileError(absl::string_view what) const;  // "name: what"

  const std::string& name() const { return name_; }
  int64_t line_number() const { return line_number_; }  // from 1
  double Progress() const { return source_->Progress(); }

 private:
  // One more line, empty ones included.
  absl::StatusOr<bool> NextRaw(absl::string_view* line);
  absl::StatusOr<bool> Fill();  // more bytes; false at the end

  const std::string name_;
  const std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes are buffer_[begin_, end_)
  int64_t line_number_ = 0;
};

// OpenFile and LineReader in one; errors name the file.
absl::StatusOr<std::unique_ptr<LineReader>> OpenLines(const std::string& path);

}  // namespace tandem::data

#endif  // TANDEM_DATA_LINE_READER_H_
