#include "data/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"

namespace tandem::data {
namespace {

// Sizes of a read. They grow, because often only a line is needed: the first of a file, or the last
// one of a block.
constexpr size_t kFirstBytes = size_t{16} << 10;
constexpr size_t kFirstBytesPastLimit = size_t{4} << 10;
constexpr size_t kChunkBytes = size_t{128} << 10;
// At most this many bytes are read to find the number of a line for a message.
constexpr int64_t kMaxCounted = int64_t{1} << 30;
constexpr char kByteOrderMark[] = "\xef\xbb\xbf";
constexpr char kCarriageReturns[] = "lines of old Macintosh files end so: tr '\\r' '\\n'";

// Counts the lines that end before byte `before` of a file; nullopt if there are too many bytes, or
// the file cannot be read.
absl::optional<int64_t> CountLines(const std::string& path, int64_t before) {
  if (before > kMaxCounted) return absl::nullopt;
  const absl::StatusOr<std::unique_ptr<ByteSource>> bytes = OpenFile(path);
  if (!bytes.ok()) return absl::nullopt;
  std::vector<char> chunk(kChunkBytes);
  int64_t lines = 0;
  for (int64_t left = before; left > 0;) {
    const size_t room = std::min(chunk.size(), static_cast<size_t>(left));
    const absl::StatusOr<size_t> got = (*bytes)->Read(chunk.data(), room);
    if (!got.ok() || *got == 0) return absl::nullopt;
    lines += std::count(chunk.data(), chunk.data() + *got, '\n');
    left -= static_cast<int64_t>(*got);
  }
  return lines;
}

}  // namespace

LineReader::LineReader(std::string name, std::unique_ptr<ByteSource> source)
    : name_(std::move(name)), source_(std::move(source)) {}

absl::Status LineReader::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Place(), ": ", what));
}

std::string LineReader::Place() const {
  int64_t number = line_number_;
  if (counted_from_ > 0) {
    const absl::optional<int64_t> before = CountLines(name_, counted_from_);
    if (!before.has_value()) return absl::StrCat(name_, ", byte ", line_offset());
    number += *before - 1;
  }
  return absl::StrCat(name_, ":", number);
}

absl::Status LineReader::FileError(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", what));
}

absl::StatusOr<bool> LineReader::Next(absl::string_view* line) {
  do {
    line_number_ = ++lines_read_;
    TANDEM_ASSIGN_OR_RETURN(const bool more, NextRaw(0, line));
    if (!more) return false;
    first_bytes_ = begin_ - line_begin_;
    if (line_number_ == 1) TANDEM_RETURN_IF_ERROR(CheckStart(*line));
    *line = Bare(*line);
  } while (line->empty());
  TANDEM_RETURN_IF_ERROR(CheckText(*line));
  return true;
}

absl::StatusOr<bool> LineReader::Extend(absl::string_view* line) {
  const size_t known = begin_ - line_begin_;
  begin_ = line_begin_;
  TANDEM_ASSIGN_OR_RETURN(const bool more, NextRaw(known, line));
  if (!more) {
    line_begin_ = begin_;
    begin_ += known;
    *line = Stored(known);
    return false;
  }
  ++lines_read_;
  TANDEM_RETURN_IF_ERROR(CheckText(line->substr(known)));
  *line = Bare(*line);
  return true;
}

void LineReader::Retract(absl::string_view* line) {
  begin_ = line_begin_ + first_bytes_;
  lines_read_ = line_number_;
  *line = Stored(first_bytes_);
}

// Bytes in the buffer are not read again.
absl::Status LineReader::Seek(int64_t offset, int64_t line_number) {
  const int64_t ahead = offset - buffer_offset_;
  if (seekable() && ahead >= 0 && ahead <= static_cast<int64_t>(end_)) {
    begin_ = line_begin_ = static_cast<size_t>(ahead);
  } else {
    if (absl::Status moved = source_->Seek(offset); !moved.ok()) return FileError(moved.message());
    begin_ = end_ = line_begin_ = 0;
    buffer_offset_ = offset;
    next_read_ = 0;
  }
  past_limit_ = false;
  if (offset == 0) line_number = 1;
  counted_from_ = line_number > 0 ? 0 : offset;
  lines_read_ = line_number > 0 ? line_number - 1 : 1;
  return absl::OkStatus();
}

// The byte before `offset` is read, too: it tells whether a line begins at `offset`.
absl::Status LineReader::SeekLine(int64_t offset) {
  if (offset <= 0) return Seek(0, 1);
  TANDEM_RETURN_IF_ERROR(Seek(offset - 1, 0));
  line_number_ = ++lines_read_;
  absl::string_view rest;
  return NextRaw(0, &rest).status();
}

absl::string_view LineReader::Bare(absl::string_view line) const {
  if (line_number_ == 1) absl::ConsumePrefix(&line, kByteOrderMark);
  while (absl::ConsumeSuffix(&line, "\r")) {
  }
  return line;
}

absl::string_view LineReader::Stored(size_t bytes) const {
  absl::string_view line(buffer_.data() + line_begin_, bytes);
  absl::ConsumeSuffix(&line, "\n");
  return Bare(line);
}

absl::Status LineReader::CheckText(absl::string_view line) const {
  if (std::memchr(line.data(), '\0', line.size()) == nullptr) return absl::OkStatus();
  return Error(
      "the line contains a NUL byte, expected text; hint: is this a binary file, UTF-16 text, or "
      "a file compressed by something other than gzip or zstd?");
}

absl::Status LineReader::CheckStart(absl::string_view line) const {
  if (absl::StartsWith(line, "\xff\xfe") || absl::StartsWith(line, "\xfe\xff")) {
    return FileError(
        "the file is UTF-16 (\"Unicode text\" of Excel), expected UTF-8; hint: iconv -f UTF-16 -t "
        "UTF-8, or save it as CSV UTF-8");
  }
  const size_t carriage_return = Bare(line).find('\r');
  if (!at_end_ || carriage_return == absl::string_view::npos) return absl::OkStatus();
  return FileError(
      absl::StrCat("the file is one line, with carriage returns (CR) in it, expected lines that "
                   "end with LF or CR LF; hint: ",
                   kCarriageReturns));
}

absl::StatusOr<bool> LineReader::NextRaw(size_t known, absl::string_view* line) {
  size_t scanned = known;  // bytes from begin_ on that hold no line end
  for (;;) {
    line_begin_ = begin_;  // for errors; reads move the line
    const char* const start = buffer_.data() + begin_;
    const size_t have = end_ - begin_;
    const void* newline =
        have == scanned ? nullptr : std::memchr(start + scanned, '\n', have - scanned);
    size_t length = newline == nullptr ? have : static_cast<const char*>(newline) - start;
    if (length > kMaxLineBytes) {
      if (known > 0) return false;
      const bool returns = std::memchr(start, '\r', length) != nullptr;
      return Error(absl::StrCat("the line is longer than ", kMaxLineBytes, " bytes; hint: ",
                                returns ? kCarriageReturns : "does the file have line ends?"));
    }
    at_end_ = false;
    if (newline == nullptr) {
      scanned = have;
      TANDEM_ASSIGN_OR_RETURN(const bool more, Fill());
      if (more) continue;
      if (have == known) return false;
      at_end_ = true;
    }
    *line = absl::string_view(buffer_.data() + begin_, length);
    begin_ += length + (at_end_ ? 0 : 1);
    return true;
  }
}

absl::StatusOr<bool> LineReader::Fill() {
  std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
  buffer_offset_ += static_cast<int64_t>(begin_);
  end_ -= begin_;
  begin_ = line_begin_ = 0;
  // Make room for a chunk, unless the room left is large enough. Otherwise the few bytes of an
  // incomplete line would let the buffer grow.
  if (buffer_.size() - end_ < kChunkBytes / 2) buffer_.resize(end_ + kChunkBytes);
  absl::StatusOr<size_t> got =
      source_->Read(buffer_.data() + end_, BytesToRead(buffer_.size() - end_));
  if (!got.ok()) {
    return absl::Status(got.status().code(), absl::StrCat(Place(), ": ", got.status().message()));
  }
  end_ += *got;
  return *got > 0;
}

size_t LineReader::BytesToRead(size_t room) {
  const int64_t left = limit_ - buffer_offset_ - static_cast<int64_t>(end_);
  if (left <= 0 && !std::exchange(past_limit_, true)) next_read_ = kFirstBytesPastLimit;
  if (next_read_ == 0) next_read_ = kFirstBytes;
  const size_t bytes = std::min(next_read_, room);
  next_read_ = std::min(2 * next_read_, kChunkBytes);
  return left > 0 ? std::min(bytes, static_cast<size_t>(left)) : bytes;
}

absl::StatusOr<std::unique_ptr<LineReader>> OpenLines(const std::string& path) {
  absl::StatusOr<std::unique_ptr<ByteSource>> bytes = OpenFile(path);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat(path, ": ", bytes.status().message()));
  }
  return std::make_unique<LineReader>(path, *std::move(bytes));
}

}  // namespace tandem::data
