// CacheWriter writes a cache file, and CacheFile reads one: the rows of one data file in a binary
// form, in blocks with checksums. data/cache_rows.h says which bytes a row has.
//
// Layout: kCacheMagic, the blocks, the index (a CacheBlock for each block), the header (a CacheMeta
// as bytes), and a CacheTail. The tail's checksum covers index, header and tail. Numbers are
// little-endian. A block has an entry for each row: varints of its place and line, minus those of
// the row before in the block; the varint of its size; its bytes. The first row of a block counts
// from CacheBlock::offset and line. zstd may compress a block.
//
// Readers check every size before they use it. If a file is cut or damaged, the error is DATA_LOSS,
// with the name of the file and, in a block, the number of the block from 0.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_CACHE_FILE_H_
#define TANDEM_DATA_CACHE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "data/deal_blocks.h"

namespace tandem::data {

inline constexpr char kCacheMagic[] = "TANDEMRC";  // without the NUL
// Change it whenever the layout changes, or a parser returns another row for the same text. The
// hashing of ids has a version of its own (kKeyHashing).
inline constexpr uint64_t kCacheVersion = 2;
// The writer closes a block when it has at least this many bytes, before compression.
inline constexpr size_t kCacheBlockBytes = size_t{256} << 10;
// The limit of a block, against damaged sizes. A larger row cannot be cached.
inline constexpr size_t kMaxCacheBlockBytes = size_t{64} << 20;

// An entry of the index. The block has `stored` bytes in the file, and `bytes` after decompression.
struct CacheBlock {
  uint64_t stored = 0, bytes = 0, rows = 0;
  int64_t offset = 0, line = 0;  // place and line of the first row in the data file
  uint64_t checksum = 0;         // XXH3 of the stored bytes
};
static_assert(sizeof(CacheBlock) == 48);

struct CacheTail {
  uint64_t version = kCacheVersion;
  uint64_t blocks = 0, meta_bytes = 0;
  uint64_t checksum = 0;  // XXH3 of index, header and the fields before this one
};
static_assert(sizeof(CacheTail) == 32);

// The header.
struct CacheMeta {
  // The data file, with its whole path. `source_hash`: XXH3 of its bytes; 0 for an address, whose
  // bytes are not read twice.
  std::string source;
  int64_t source_bytes = 0, source_written_ns = 0;  // the time is since 1970
  int64_t source_inode = 0;
  uint64_t source_hash = 0;
  std::string described;  // a Data message with the fields that decide how rows are parsed
  std::string hashing;    // kKeyHashing
  std::string negative;   // RowParser::LearnedNegative() at the end of the file
  int64_t rows = 0, bad_rows = 0;
  int64_t columns = 0;     // RowParser::columns()
  int64_t zstd_level = 0;  // 0: not compressed
  // The data file: RowFile::seekable(), whether line() is known in every block of a deal, Pieces()
  // and whole_piece().
  bool seekable = true, numbered = true;
  std::vector<DealtFile> pieces;
  std::string whole_piece;
};

// Appends a number in groups of 7 bits, the lowest first.
void AppendVarint(uint64_t number, std::string* bytes);
// Removes a number from the front of `bytes`. False if the bytes are no number.
bool TakeVarint(absl::string_view* bytes, uint64_t* number);

class CacheWriter {
 public:
  // The file appears at `path` with Finish, or not at all.
  static absl::StatusOr<std::unique_ptr<CacheWriter>> Create(const std::string& path,
                                                             int zstd_level);

  // Adds a row. Places and lines must not decrease.
  absl::Status Add(int64_t offset, int64_t line, absl::string_view row);
  absl::Status Finish(const CacheMeta& meta);
  uint64_t bytes() const { return bytes_; }  // size of the file so far

 private:
  CacheWriter(NewFile file, std::string path, int zstd_level)
      : file_(std::move(file)), path_(std::move(path)), zstd_level_(zstd_level) {}
  absl::Status Append(absl::string_view bytes);
  absl::Status EndBlock();

  NewFile file_;
  const std::string path_;
  const int zstd_level_;
  uint64_t bytes_ = 0;
  std::string block_, packed_;
  CacheBlock open_;  // the block that Add fills
  int64_t offset_ = 0, line_ = 0;
  std::vector<CacheBlock> index_;
};

class CacheFile {
 public:
  // Reads the header and the index. NOT_FOUND: no file. DATA_LOSS: cut or damaged.
  // FAILED_PRECONDITION: another version of the format. UNAVAILABLE: the disk or its permissions.
  static absl::StatusOr<std::unique_ptr<CacheFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const CacheMeta& meta() const { return meta_; }
  const std::vector<CacheBlock>& blocks() const { return index_; }
  // Reads a block and decompresses it.
  absl::Status Read(size_t block, std::string* bytes);
  // Reads all blocks, to check them.
  absl::Status CheckBlocks();
  // The error that a block is damaged.
  absl::Status Damaged(size_t block) const;

 private:
  CacheFile(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Init();
  absl::Status ReadIndex(absl::string_view index, uint64_t end);

  const OwnedFd fd_;
  const std::string path_;
  CacheMeta meta_;
  std::vector<CacheBlock> index_;
  std::vector<uint64_t> begins_;  // the byte of the file at which each block begins
  std::string stored_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_CACHE_FILE_H_
