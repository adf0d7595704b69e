// A cache file: the rows of one data file in a binary form, in blocks with checksums. `tandem
// cache` writes such files, and CacheRows (data/cache_rows.h) reads their rows.
//
// Layout: kCacheMagic, the blocks, the index (a CacheBlock for each block), the header (a CacheMeta
// as bytes), and a CacheTail. The tail's checksum covers index, header and tail. Numbers are
// little-endian. A block, perhaps packed by zstd, has entries: varints of the row's place and line,
// less those of the row before, the varint of its size, and its bytes.
//
// Reading checks every size before its use. A file that is cut or damaged gives DATA_LOSS, with the
// name of the file and the number of the block.
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
// Change it whenever the layout changes, or a parser makes something else of a text. The hashing of
// ids has a version of its own (kKeyHashing).
inline constexpr uint64_t kCacheVersion = 1;
// A block is closed when it has this many bytes. Only a single row can make it larger.
inline constexpr size_t kCacheBlockBytes = size_t{256} << 10;
inline constexpr size_t kMostCacheBlockBytes = size_t{64} << 20;

// The rows of a block. `stored` bytes lie in the file, and are `bytes` when they are unpacked.
struct CacheBlock {
  uint64_t stored = 0, bytes = 0, rows = 0;
  int64_t offset = 0, line = 0;  // of the first row: its place and line in the data file
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
  int64_t source_bytes = 0, source_written_ns = 0;
  uint64_t source_hash = 0;
  std::string described;  // a Data message: what decides the contents (data/cache_rows.h)
  std::string hashing;    // kKeyHashing
  std::string negative;   // RowParser::LearnedNegative() at the end of the file
  int64_t rows = 0, bad_rows = 0;
  int64_t columns = 0;     // RowParser::columns()
  int64_t zstd_level = 0;  // 0: not packed
  // RowFile::seekable(), whether its lines have numbers in every block, Pieces and whole_piece.
  bool seekable = true, numbered = true;
  std::vector<DealtFile> pieces;
  std::string whole_piece;
};

// Appends a number in groups of 7 bits, the lowest first.
void AppendVarint(uint64_t number, std::string* bytes);
// Takes a number off the front of `bytes`. False if there is none.
bool TakeVarint(absl::string_view* bytes, uint64_t* number);

class CacheWriter {
 public:
  // The file appears at `path` with Finish, or not at all.
  static absl::StatusOr<std::unique_ptr<CacheWriter>> Create(const std::string& path,
                                                             int zstd_level);

  // Adds a row. Places and lines must not decrease.
  absl::Status Add(int64_t offset, int64_t line, absl::string_view row);
  absl::Status Finish(const CacheMeta& meta);
  uint64_t bytes() const { return bytes_; }  // of the file so far

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
  CacheBlock open_;  // the block that grows
  int64_t offset_ = 0, line_ = 0;
  std::vector<CacheBlock> index_;
};

class CacheFile {
 public:
  // Reads the header and the index. NOT_FOUND; DATA_LOSS; FAILED_PRECONDITION: another version.
  static absl::StatusOr<std::unique_ptr<CacheFile>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const CacheMeta& meta() const { return meta_; }
  const std::vector<CacheBlock>& blocks() const { return index_; }
  // The unpacked bytes of a block.
  absl::Status Read(size_t block, std::string* bytes);
  // Reads all blocks.
  absl::Status CheckBlocks();
  absl::Status Damaged(size_t block) const;

 private:
  CacheFile(OwnedFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Init();
  absl::Status ReadIndex(absl::string_view index, uint64_t end);

  const OwnedFd fd_;
  const std::string path_;
  CacheMeta meta_;
  std::vector<CacheBlock> index_;
  std::vector<uint64_t> begins_;  // where each block begins
  std::string stored_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_CACHE_FILE_H_
