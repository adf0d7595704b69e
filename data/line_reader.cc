#include "data/line_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tandem::data {
namespace {

constexpr size_t kChunkBytes = size_t{128} << 10;  // of one read

}  // namespace

LineReader::LineReader(std::string name, std::unique_ptr<ByteSource> source)
    : name_(std::move(name)), source_(std::move(source)) {}

absl::Status LineReader::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ":", line_number_, ": ", what));
}

absl::Status LineReader::FileError(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": ", what));
}

absl::StatusOr<bool> LineReader::Next(absl::string_view* line) {
  do {
    TANDEM_ASSIGN_OR_RETURN(const bool more, NextRaw(line));
    if (!more) return false;
    if (line_number_ == 1) absl::ConsumePrefix(line, "\xef\xbb\xbf");
    absl::ConsumeSuffix(line, "\r");
  } while (line->empty());
  if (std::memchr(line->data(), '\0', line->size()) != nullptr) {
    return Error(
        "the line contains a NUL byte, expected text; hint: is this a binary file, or "
        "one compressed by something other than gzip or zstd?");
  }
  return true;
}

absl::StatusOr<bool> LineReader::NextRaw(absl::string_view* line) {
  size_t scanned = 0;  // bytes from begin_ known to hold no line end
  ++line_number_;
  for (;;) {
    const char* const start = buffer_.data() + begin_;
    const size_t have = end_ - begin_;
    const void* newline =
        have == scanned ? nullptr : std::memchr(start + scanned, '\n', have - scanned);
    size_t length = newline == nullptr ? have : static_cast<const char*>(newline) - start;
    if (length > kMaxLineBytes) {
      return Error(absl::StrCat("the line is longer than ", kMaxLineBytes,
                                " bytes; hint: does the file have line ends?"));
    }
    bool last = false;
    if (newline == nullptr) {
      scanned = have;
      TANDEM_ASSIGN_OR_RETURN(const bool more, Fill());
      if (more) continue;
      if (have == 0) return false;
      last = true;  // a last line without a line end
    }
    *line = absl::string_view(buffer_.data() + begin_, length);
    begin_ += length + (last ? 0 : 1);
    return true;
  }
}

absl::StatusOr<bool> LineReader::Fill() {
  std::copy(buffer_.begin() + begin_, buffer_.begin() + end_, buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  // Room for a chunk, unless there is room enough not to grow for the few bytes left of a line.
  if (buffer_.size() - end_ < kChunkBytes / 2) buffer_.resize(end_ + kChunkBytes);
  const size_t room = std::min(kChunkBytes, buffer_.size() - end_);
  absl::StatusOr<size_t> got = source_->Read(buffer_.data() + end_, room);
  if (!got.ok()) {
    return absl::Status(got.status().code(),
                        absl::StrCat(name_, ":", line_number_, ": ", got.status().message()));
  }
  end_ += *got;
  return *got > 0;
}

absl::StatusOr<std::unique_ptr<LineReader>> OpenLines(const std::string& path) {
  absl::StatusOr<std::unique_ptr<ByteSource>> bytes = OpenFile(path);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat(path, ": ", bytes.status().message()));
  }
  return std::make_unique<LineReader>(path, *std::move(bytes));
}

}  // namespace tandem::data
