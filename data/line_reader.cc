#include "data/line_reader.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kChunkBytes = size_t{128} << 10;  // of one read; stays in the second-level cache

// zlib reads plain files too, so both kinds take the same path.
class FileBytes final : public ByteSource {
 public:
  FileBytes(gzFile file, bool must_be_gzip, int64_t stored_bytes)
      : file_(file), must_be_gzip_(must_be_gzip), stored_bytes_(stored_bytes) {}
  ~FileBytes() override { gzclose(file_); }
  FileBytes(const FileBytes&) = delete;
  FileBytes& operator=(const FileBytes&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const int got = gzread(file_, out, static_cast<unsigned>(size));
    if (must_be_gzip_ && got > 0 && gzdirect(file_) == 1) {
      return absl::InvalidArgumentError(
          "the name ends in .gz but the content is not gzip data; hint: rename the file or "
          "compress it");
    }
    if (got > 0) return static_cast<size_t>(got);
    int code = Z_OK;
    const char* what = gzerror(file_, &code);
    if (got == 0 && code == Z_OK) return 0;
    if (code == Z_BUF_ERROR) {
      return absl::InvalidArgumentError(
          "the gzip data end too early; hint: the file is truncated, copy it again");
    }
    if (code == Z_ERRNO) return absl::UnavailableError(std::strerror(errno));
    return absl::InvalidArgumentError(
        absl::StrCat("damaged gzip data (", what, "); hint: test the file with gzip -t"));
  }

  double Progress() const override {
    const int64_t at = gzoffset(file_);
    return stored_bytes_ <= 0 ? 1.0 : static_cast<double>(at) / static_cast<double>(stored_bytes_);
  }

 private:
  const gzFile file_;
  const bool must_be_gzip_;
  const int64_t stored_bytes_;
};

class SpanBytes final : public ByteSource {
 public:
  explicit SpanBytes(absl::string_view bytes) : bytes_(bytes) {}
  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t n = std::min(size, bytes_.size() - at_);
    std::copy_n(bytes_.data() + at_, n, out);
    at_ += n;
    return n;
  }
  double Progress() const override {
    return bytes_.empty() ? 1.0 : static_cast<double>(at_) / static_cast<double>(bytes_.size());
  }

 private:
  const absl::string_view bytes_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  struct stat info;
  errno = 0;
  gzFile file = stat(path.c_str(), &info) == 0 ? gzopen(path.c_str(), "rbe") : nullptr;
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open: ", std::strerror(errno),
                                            "; hint: check the path in the job file"));
  }
  gzbuffer(file, kChunkBytes);
  return std::make_unique<FileBytes>(file, absl::EndsWith(path, ".gz"), info.st_size);
}

std::unique_ptr<ByteSource> MemoryBytes(absl::string_view bytes) {
  return std::make_unique<SpanBytes>(bytes);
}

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
        "one compressed by something other than gzip?");
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

}  // namespace tandem
