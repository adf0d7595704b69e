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

namespace tandem {
namespace {

constexpr size_t kChunkBytes = size_t{128} << 10;  // of one read; stays in the second-level cache

// Plain files too: zlib reads them as they are.
class GzipBytes final : public ByteSource {
 public:
  GzipBytes(gzFile file, bool must_be_gzip, int64_t stored_bytes)
      : file_(file), must_be_gzip_(must_be_gzip), stored_bytes_(stored_bytes) {}
  ~GzipBytes() override { gzclose(file_); }
  GzipBytes(const GzipBytes&) = delete;
  GzipBytes& operator=(const GzipBytes&) = delete;

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

// A sequence of zstd frames, which is what zstd, pzstd and `cat a.zst b.zst` write.
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
  // False if the file cannot be read; at its end there are no bytes.
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
  bool within_frame_ = true;  // an empty file is one that ends too early
  bool any_ = false;          // something could be unpacked
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

// The first frame of zstd, or the frame without data that pzstd begins with.
bool StartsAsZstd(std::FILE* file) {
  unsigned char first[4] = {};
  const bool enough = std::fread(first, 1, sizeof first, file) == sizeof first;
  std::rewind(file);
  const uint32_t magic = first[0] | first[1] << 8 | first[2] << 16 | uint32_t{first[3]} << 24;
  return enough && (magic == ZSTD_MAGICNUMBER ||
                    (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> OpenFile(const std::string& path) {
  struct stat info;
  errno = 0;
  std::FILE* const file =
      stat(path.c_str(), &info) == 0 ? std::fopen(path.c_str(), "rbe") : nullptr;
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open: ", std::strerror(errno),
                                            "; hint: check the path in the job file"));
  }
  if (absl::EndsWith(path, ".zst") || StartsAsZstd(file)) {
    return std::make_unique<ZstdBytes>(file, info.st_size);
  }
  std::fclose(file);
  const gzFile packed = gzopen(path.c_str(), "rbe");
  if (packed == nullptr) return absl::NotFoundError(absl::StrCat("cannot open: ", strerror(errno)));
  gzbuffer(packed, kChunkBytes);
  return std::make_unique<GzipBytes>(packed, absl::EndsWith(path, ".gz"), info.st_size);
}

std::unique_ptr<ByteSource> MemoryBytes(absl::string_view bytes) {
  return std::make_unique<SpanBytes>(bytes);
}

}  // namespace tandem
