#include "data/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::data {
namespace {

constexpr size_t kMagicBytes = sizeof kCacheMagic - 1;
constexpr char kAgain[] = "; hint: tandem cache JOB again";

absl::string_view BytesOf(const void* data, size_t bytes) {
  return {static_cast<const char*>(data), bytes};
}

uint64_t TailChecksum(absl::string_view index_and_meta, const CacheTail& tail) {
  const uint64_t of_rest = XXH3_64bits(index_and_meta.data(), index_and_meta.size());
  return XXH3_64bits_withSeed(&tail, offsetof(CacheTail, checksum), of_rest);
}

absl::Status ReadAt(const OwnedFd& fd, const std::string& path, uint64_t offset, size_t size,
                    std::string* bytes) {
  bytes->resize(size);
  for (size_t done = 0; done < size;) {
    const ssize_t n =
        pread(fd.get(), bytes->data() + done, size - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path, ": ends at byte ", offset + done, ", expected ",
                                              offset + size, " bytes", kAgain));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// ---- the header as bytes ----

void PutText(absl::string_view text, std::string* bytes) {
  AppendVarint(text.size(), bytes);
  absl::StrAppend(bytes, text);
}

void PutNumber(int64_t number, std::string* bytes) {
  AppendVarint(static_cast<uint64_t>(number), bytes);
}

std::string MetaBytes(const CacheMeta& meta) {
  std::string bytes;
  for (const std::string* text :
       {&meta.source, &meta.described, &meta.hashing, &meta.negative, &meta.whole_piece}) {
    PutText(*text, &bytes);
  }
  for (const int64_t number : {meta.source_bytes, meta.source_written_ns, meta.source_inode,
                               static_cast<int64_t>(meta.source_hash), meta.rows, meta.bad_rows,
                               meta.columns, meta.zstd_level, int64_t{meta.seekable},
                               int64_t{meta.numbered}, static_cast<int64_t>(meta.pieces.size())}) {
    PutNumber(number, &bytes);
  }
  for (const DealtFile& piece : meta.pieces) {
    PutNumber(piece.bytes.begin, &bytes);
    PutNumber(piece.bytes.end, &bytes);
    PutNumber(piece.bytes.line, &bytes);
    PutNumber(piece.whole ? 1 : 0, &bytes);
    absl::StrAppend(&bytes, BytesOf(&piece.unpacked, sizeof piece.unpacked));
  }
  return bytes;
}

bool TakeText(absl::string_view* bytes, std::string* text) {
  uint64_t size = 0;
  if (!TakeVarint(bytes, &size) || size > bytes->size()) return false;
  *text = std::string(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return true;
}

bool TakeNumber(absl::string_view* bytes, int64_t* number) {
  uint64_t word = 0;
  if (!TakeVarint(bytes, &word)) return false;
  *number = static_cast<int64_t>(word);
  return true;
}

bool TakePiece(absl::string_view* bytes, DealtFile* piece) {
  int64_t whole = 0;
  if (!TakeNumber(bytes, &piece->bytes.begin) || !TakeNumber(bytes, &piece->bytes.end) ||
      !TakeNumber(bytes, &piece->bytes.line) || !TakeNumber(bytes, &whole) ||
      bytes->size() < sizeof piece->unpacked || piece->bytes.begin < 0 ||
      piece->bytes.end < piece->bytes.begin) {
    return false;
  }
  piece->whole = whole != 0;
  std::memcpy(&piece->unpacked, bytes->data(), sizeof piece->unpacked);
  bytes->remove_prefix(sizeof piece->unpacked);
  return true;
}

bool TakeMeta(absl::string_view bytes, CacheMeta* meta) {
  for (std::string* text :
       {&meta->source, &meta->described, &meta->hashing, &meta->negative, &meta->whole_piece}) {
    if (!TakeText(&bytes, text)) return false;
  }
  int64_t hash = 0, seekable = 0, numbered = 0, pieces = 0;
  for (int64_t* number :
       {&meta->source_bytes, &meta->source_written_ns, &meta->source_inode, &hash, &meta->rows,
        &meta->bad_rows, &meta->columns, &meta->zstd_level, &seekable, &numbered, &pieces}) {
    if (!TakeNumber(&bytes, number)) return false;
  }
  meta->source_hash = static_cast<uint64_t>(hash);
  meta->seekable = seekable != 0;
  meta->numbered = numbered != 0;
  for (int64_t i = 0; i < pieces; ++i) {
    if (!TakePiece(&bytes, &meta->pieces.emplace_back())) return false;
  }
  return bytes.empty() && meta->rows >= 0 && meta->columns >= 0;
}

}  // namespace

void AppendVarint(uint64_t number, std::string* bytes) {
  for (; number >= 0x80; number >>= 7) bytes->push_back(static_cast<char>(number | 0x80));
  bytes->push_back(static_cast<char>(number));
}

bool TakeVarint(absl::string_view* bytes, uint64_t* number) {
  *number = 0;
  for (size_t i = 0; i < bytes->size() && i < 10; ++i) {
    const auto byte = static_cast<unsigned char>((*bytes)[i]);
    *number |= uint64_t{byte & 0x7fu} << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// ---- writing ----

absl::StatusOr<std::unique_ptr<CacheWriter>> CacheWriter::Create(const std::string& path,
                                                                 int zstd_level) {
  TANDEM_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  std::unique_ptr<CacheWriter> writer(new CacheWriter(std::move(file), path, zstd_level));
  TANDEM_RETURN_IF_ERROR(writer->Append({kCacheMagic, kMagicBytes}));
  return writer;
}

absl::Status CacheWriter::Append(absl::string_view bytes) {
  bytes_ += bytes.size();
  return file_.Append(bytes);
}

absl::Status CacheWriter::Add(int64_t offset, int64_t line, absl::string_view row) {
  if (open_.rows == 0) {
    open_.offset = offset_ = offset;
    open_.line = line_ = line;
  }
  TANDEM_CHECK(offset >= offset_ && line >= line_);
  AppendVarint(static_cast<uint64_t>(offset - offset_), &block_);
  AppendVarint(static_cast<uint64_t>(line - line_), &block_);
  AppendVarint(row.size(), &block_);
  absl::StrAppend(&block_, row);
  offset_ = offset;
  line_ = line;
  ++open_.rows;
  return block_.size() < kCacheBlockBytes ? absl::OkStatus() : EndBlock();
}

absl::Status CacheWriter::EndBlock() {
  if (open_.rows == 0) return absl::OkStatus();
  if (block_.size() > kMaxCacheBlockBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": a row takes ", block_.size(),
                                                   " bytes, expected at most ", kMaxCacheBlockBytes,
                                                   "; hint: read this file without a cache"));
  }
  absl::string_view stored = block_;
  if (zstd_level_ > 0) {
    packed_.resize(ZSTD_compressBound(block_.size()));
    const size_t size =
        ZSTD_compress(packed_.data(), packed_.size(), block_.data(), block_.size(), zstd_level_);
    TANDEM_CHECK(!ZSTD_isError(size));
    stored = absl::string_view(packed_).substr(0, size);
  }
  open_.stored = stored.size();
  open_.bytes = block_.size();
  open_.checksum = XXH3_64bits(stored.data(), stored.size());
  TANDEM_RETURN_IF_ERROR(Append(stored));
  index_.push_back(std::exchange(open_, CacheBlock()));
  block_.clear();
  return absl::OkStatus();
}

absl::Status CacheWriter::Finish(const CacheMeta& meta) {
  TANDEM_RETURN_IF_ERROR(EndBlock());
  const std::string meta_bytes = MetaBytes(meta);
  const std::string rest =
      absl::StrCat(BytesOf(index_.data(), index_.size() * sizeof(CacheBlock)), meta_bytes);
  CacheTail tail;
  tail.blocks = index_.size();
  tail.meta_bytes = meta_bytes.size();
  tail.checksum = TailChecksum(rest, tail);
  TANDEM_RETURN_IF_ERROR(Append(rest));
  TANDEM_RETURN_IF_ERROR(Append(BytesOf(&tail, sizeof tail)));
  return file_.Finish();
}

// ---- reading ----

absl::StatusOr<std::unique_ptr<CacheFile>> CacheFile::Open(const std::string& path) {
  OwnedFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const std::string what = absl::StrCat(path, ": ", std::strerror(errno));
    if (errno == ENOENT) return absl::NotFoundError(what);
    return absl::UnavailableError(absl::StrCat(what, "; hint: check the rights of the folder"));
  }
  std::unique_ptr<CacheFile> file(new CacheFile(std::move(fd), path));
  TANDEM_RETURN_IF_ERROR(file->Init());
  return file;
}

absl::Status CacheFile::Init() {
  const auto damaged = [this](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path_, ": ", what, kAgain));
  };
  struct stat info = {};
  if (fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return damaged("is not a regular file");
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size < kMagicBytes + sizeof(CacheTail)) return damaged("is cut, or no cache of rows");
  std::string bytes;
  TANDEM_RETURN_IF_ERROR(ReadAt(fd_, path_, 0, kMagicBytes, &bytes));
  if (bytes != absl::string_view(kCacheMagic, kMagicBytes)) return damaged("is no cache of rows");
  const uint64_t end = size - sizeof(CacheTail);
  TANDEM_RETURN_IF_ERROR(ReadAt(fd_, path_, end, sizeof(CacheTail), &bytes));
  CacheTail tail;
  std::memcpy(&tail, bytes.data(), sizeof tail);
  const uint64_t room = end - kMagicBytes;
  if (tail.blocks > room / sizeof(CacheBlock) ||
      tail.meta_bytes > room - tail.blocks * sizeof(CacheBlock)) {
    return damaged("is cut or damaged at its end");
  }
  const uint64_t index_bytes = tail.blocks * sizeof(CacheBlock);
  const uint64_t begin = end - index_bytes - tail.meta_bytes;
  TANDEM_RETURN_IF_ERROR(ReadAt(fd_, path_, begin, end - begin, &bytes));
  if (TailChecksum(bytes, tail) != tail.checksum) return damaged("is cut or damaged at its end");
  if (tail.version != kCacheVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": has version ", tail.version,
                                                      " of the format, expected ", kCacheVersion,
                                                      "; hint: tandem cache JOB"));
  }
  const absl::string_view all = bytes;
  if (!TakeMeta(all.substr(index_bytes), &meta_)) return damaged("has a damaged header");
  return ReadIndex(all.substr(0, index_bytes), begin);
}

absl::Status CacheFile::ReadIndex(absl::string_view index, uint64_t end) {
  index_.resize(index.size() / sizeof(CacheBlock));
  if (!index.empty()) std::memcpy(index_.data(), index.data(), index.size());
  const uint64_t max_stored = ZSTD_compressBound(kMaxCacheBlockBytes);
  uint64_t at = kMagicBytes, rows = 0;
  for (size_t i = 0; i < index_.size(); ++i) {
    const CacheBlock& block = index_[i];
    const bool fits = block.stored <= end - at && block.stored <= max_stored &&
                      block.bytes <= kMaxCacheBlockBytes &&
                      (meta_.zstd_level > 0 || block.stored == block.bytes) && block.rows > 0 &&
                      block.rows <= block.bytes && block.offset >= 0 && block.line >= 0 &&
                      (i == 0 || block.offset > index_[i - 1].offset);
    if (!fits) return Damaged(i);
    begins_.push_back(at);
    at += block.stored;
    rows += block.rows;
  }
  if (at == end && rows == static_cast<uint64_t>(meta_.rows)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path_, ": has a damaged index", kAgain));
}

absl::Status CacheFile::Damaged(size_t block) const {
  return absl::DataLossError(absl::StrCat(path_, ": block ", block, " is damaged", kAgain));
}

absl::Status CacheFile::Read(size_t block, std::string* bytes) {
  const CacheBlock& at = index_[block];
  const bool packed = meta_.zstd_level > 0;
  std::string* const stored = packed ? &stored_ : bytes;
  TANDEM_RETURN_IF_ERROR(ReadAt(fd_, path_, begins_[block], at.stored, stored));
  if (XXH3_64bits(stored->data(), stored->size()) != at.checksum) return Damaged(block);
  if (!packed) return absl::OkStatus();
  bytes->resize(at.bytes);
  const size_t size = ZSTD_decompress(bytes->data(), bytes->size(), stored->data(), stored->size());
  return size == at.bytes ? absl::OkStatus() : Damaged(block);
}

absl::Status CacheFile::CheckBlocks() {
  std::string bytes;
  for (size_t i = 0; i < index_.size(); ++i) TANDEM_RETURN_IF_ERROR(Read(i, &bytes));
  return absl::OkStatus();
}

}  // namespace tandem::data
