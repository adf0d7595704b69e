#include "data/byte_source.h"

#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "data/files.h"

namespace tandem::data {
namespace {

constexpr size_t kChunkBytes = size_t{128} << 10;  // size of one read; fits the second-level cache

class PlainBytes final : public ByteSource {
 public:
  PlainBytes(std::FILE* file, bool must_be_gzip, int64_t stored_bytes)
      : file_(file), must_be_gzip_(must_be_gzip), stored_bytes_(stored_bytes) {}
  ~PlainBytes() override { std::fclose(file_); }
  PlainBytes(const PlainBytes&) = delete;
  PlainBytes& operator=(const PlainBytes&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    const size_t got = std::fread(out, 1, size, file_);
    if (std::ferror(file_) != 0) return absl::UnavailableError(std::strerror(errno));
    if (must_be_gzip_ && got > 0) {
      return absl::InvalidArgumentError(
          "the name ends in .gz but the content is not gzip data; hint: rename the file or "
          "compress it");
    }
    taken_ += static_cast<int64_t>(got);
    return got;
  }

  double Progress() const override {
    return stored_bytes_ <= 0 ? 1.0
                              : static_cast<double>(taken_) / static_cast<double>(stored_bytes_);
  }

  bool seekable() const override { return true; }
  absl::Status Seek(int64_t offset) override {
    if (fseeko(file_, offset, SEEK_SET) != 0) return absl::UnavailableError(std::strerror(errno));
    taken_ = offset;
    return absl::OkStatus();
  }

 private:
  std::FILE* const file_;
  const bool must_be_gzip_;
  const int64_t stored_bytes_;
  int64_t taken_ = 0;
};

// A sequence of gzip members, as gzip, pigz and `cat a.gz b.gz` write it. zlib's own file reader is
// not used, because that reader ends silently at anything after a member that is no gzip data, so
// rows would be missing. Zeros may follow the last member, since tapes add them.
class GzipBytes final : public ByteSource {
 public:
  GzipBytes(std::FILE* file, int64_t stored_bytes) : file_(file), stored_bytes_(stored_bytes) {
    TANDEM_CHECK(inflateInit2(&stream_, kGzipWindow) == Z_OK);
  }
  ~GzipBytes() override {
    inflateEnd(&stream_);
    std::fclose(file_);
  }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(size);
    for (;;) {
      if (stream_.avail_in == 0 && !Refill()) return absl::UnavailableError(std::strerror(errno));
      if (between_members_) SkipZeros();
      if (stream_.avail_in == 0 && at_end_) {
        if (between_members_) return size_t{0};
        return absl::InvalidArgumentError(
            "the gzip data end too early; hint: the file is truncated, copy it again");
      }
      if (stream_.avail_in == 0) continue;
      if (between_members_ && *stream_.next_in != kFirstByte) return Garbage();
      between_members_ = false;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) return Damaged();
      if (code == Z_STREAM_END) {
        ++members_;
        between_members_ = true;
        TANDEM_CHECK(inflateReset(&stream_) == Z_OK);
      }
      if (stream_.avail_out < size) return size - stream_.avail_out;
    }
  }

  double Progress() const override {
    const int64_t at = taken_ - stream_.avail_in;
    return stored_bytes_ <= 0 ? 1.0 : static_cast<double>(at) / static_cast<double>(stored_bytes_);
  }

 private:
  static constexpr int kGzipWindow = 15 + 16;        // the largest window, and a gzip header
  static constexpr unsigned char kFirstByte = 0x1f;  // first byte of a member

  // Reads the next chunk. False if the file cannot be read.
  bool Refill() {
    stream_.next_in = chunk_.data();
    stream_.avail_in = static_cast<uInt>(std::fread(chunk_.data(), 1, chunk_.size(), file_));
    taken_ += stream_.avail_in;
    at_end_ = stream_.avail_in == 0;
    return std::ferror(file_) == 0;
  }

  void SkipZeros() {
    for (; members_ > 0 && stream_.avail_in > 0 && *stream_.next_in == 0; --stream_.avail_in) {
      ++stream_.next_in;
    }
  }

  absl::Status Garbage() const {
    return absl::InvalidArgumentError(
        absl::StrCat("after ", members_, " gzip member", members_ == 1 ? "" : "s",
                     " the file continues with other bytes, from byte ", taken_ - stream_.avail_in,
                     "; hint: test the file with gzip -t, and copy it again"));
  }

  absl::Status Damaged() const {
    return absl::InvalidArgumentError(absl::StrCat(
        "damaged gzip data (", stream_.msg == nullptr ? "no reason given" : stream_.msg,
        "); hint: test the file with gzip -t"));
  }

  std::FILE* const file_;
  const int64_t stored_bytes_;
  z_stream stream_ = {};
  std::vector<Bytef> chunk_ = std::vector<Bytef>(kChunkBytes);
  int64_t taken_ = 0;
  int64_t members_ = 0;  // complete members
  bool between_members_ = true, at_end_ = false;
};

// A sequence of zstd frames, as zstd, pzstd and `cat a.zst b.zst` write it.
class ZstdBytes final : public ByteSource {
 public:
  ZstdBytes(std::FILE* file, int64_t stored_bytes)
      : file_(file), stored_bytes_(stored_bytes), context_(ZSTD_createDCtx()) {
    TANDEM_CHECK(context_ != nullptr);
  }
  ~ZstdBytes() override {
    ZSTD_freeDCtx(context_);
    std::fclose(file_);
  }
  ZstdBytes(const ZstdBytes&) = delete;
  ZstdBytes& operator=(const ZstdBytes&) = delete;

  absl::StatusOr<size_t> Read(char* out, size_t size) override {
    for (ZSTD_outBuffer unpacked = {out, size, 0};;) {
      if (packed_.pos == packed_.size && !Refill()) return absl::UnavailableError(strerror(errno));
      if (packed_.size == 0 && !within_frame_) return size_t{0};
      const size_t wanted = ZSTD_decompressStream(context_, &unpacked, &packed_);
      if (ZSTD_isError(wanted)) return Damaged(wanted);
      within_frame_ = wanted != 0;
      any_ = true;
      if (unpacked.pos > 0) return unpacked.pos;
      if (packed_.size == 0 && within_frame_) {
        return absl::InvalidArgumentError(
            "the zstd data end too early; hint: the file is truncated, copy it again");
      }
    }
  }

  double Progress() const override {
    return stored_bytes_ <= 0 ? 1.0
                              : static_cast<double>(taken_) / static_cast<double>(stored_bytes_);
  }

 private:
  // Reads the next chunk, which is empty at the end of the file. False if the file cannot be read.
  bool Refill() {
    packed_.pos = 0;
    packed_.size = std::fread(chunk_.data(), 1, chunk_.size(), file_);
    taken_ += static_cast<int64_t>(packed_.size);
    return std::ferror(file_) == 0;
  }

  absl::Status Damaged(size_t error) const {
    if (!any_ && ZSTD_getErrorCode(error) == ZSTD_error_prefix_unknown) {
      return absl::InvalidArgumentError(
          "the name ends in .zst but the content is not zstd data; hint: rename the file or "
          "compress it");
    }
    return absl::InvalidArgumentError(absl::StrCat("damaged zstd data (", ZSTD_getErrorName(error),
                                                   "); hint: test the file with zstd -t"));
  }

  std::FILE* const file_;
  const int64_t stored_bytes_;
  ZSTD_DCtx* const context_;
  std::vector<char> chunk_ = std::vector<char>(kChunkBytes);
  ZSTD_inBuffer packed_ = {chunk_.data(), 0, 0};
  int64_t taken_ = 0;
  bool within_frame_ = true;  // so that an empty file ends too early
  bool any_ = false;          // some frame was unpacked
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

enum class Packing { kNone, kGzip, kZstd };

// Recognises the packing by the first bytes: those of a gzip member, of a zstd frame, or of the
// frame without data that pzstd writes first.
Packing PackingOf(std::FILE* file) {
  unsigned char first[4] = {};
  const size_t got = std::fread(first, 1, sizeof first, file);
  std::rewind(file);
  if (got >= 2 && first[0] == 0x1f && first[1] == 0x8b) return Packing::kGzip;
  const uint32_t magic = first[0] | first[1] << 8 | first[2] << 16 | uint32_t{first[3]} << 24;
  const bool zstd = magic == ZSTD_MAGICNUMBER ||
                    (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START;
  return got == sizeof first && zstd ? Packing::kZstd : Packing::kNone;
}

}  // namespace

absl::Status ByteSource::Seek(int64_t /*offset*/) {
  return absl::UnimplementedError("only plain files can be read from a given byte");
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  struct stat info;
  errno = 0;
  std::FILE* const file =
      stat(path.c_str(), &info) == 0 ? std::fopen(path.c_str(), "rbe") : nullptr;
  if (file == nullptr) {
    const int error = errno;
    return CannotOpen("cannot open", error);
  }
  // With a buffer, stdio would read whole blocks of the file system, which may have 1 MiB on NFS.
  std::setvbuf(file, nullptr, _IONBF, 0);
  const Packing packing = PackingOf(file);
  if (absl::EndsWith(path, ".zst") || packing == Packing::kZstd) {
    return std::make_unique<ZstdBytes>(file, info.st_size);
  }
  if (packing == Packing::kGzip) return std::make_unique<GzipBytes>(file, info.st_size);
  return std::make_unique<PlainBytes>(file, absl::EndsWith(path, ".gz"), info.st_size);
}

std::unique_ptr<ByteSource> MemoryBytes(absl::string_view bytes) {
  return std::make_unique<SpanBytes>(bytes);
}

}  // namespace tandem::data
