// DealBlocks deals the bytes of files to workers, so that each worker reads only its own share
// (data.deal: BLOCKS). It joins the plain files in their order, cuts them into rounds, and cuts
// each round into one block for each worker. Every worker therefore has rows from all regions of
// the files. Compressed files are dealt whole. Workers with fewer bytes of compressed files get
// more bytes of plain files.
//
// A block begins and ends at any byte. A row belongs to the block that has its first byte.
//
// Thread safety: pure functions.
#ifndef TANDEM_DATA_DEAL_BLOCKS_H_
#define TANDEM_DATA_DEAL_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"

namespace tandem::data {

inline constexpr int64_t kNoEnd = std::numeric_limits<int64_t>::max();

// The rows of a file that begin at one of the bytes [begin, end), unpacked.
struct Block {
  size_t file = 0;  // index of the file
  int64_t begin = 0, end = kNoEnd;
  int64_t line = 0;  // number of the line that begins at `begin`; 0: not known
  friend bool operator==(const Block&, const Block&) = default;
};

// The part of a file that is dealt.
struct DealtFile {
  Block bytes;
  bool whole = false;   // a compressed file, which cannot be cut
  double unpacked = 0;  // of a whole file: about as many bytes of plain text
};

struct BlockDeal {
  std::vector<std::vector<Block>> of;  // by worker, in the order of the files
  bool everyone = false;               // each worker has bytes
  double largest = 1;                  // the largest share, as a multiple of the mean
};

// The result depends on the arguments alone. Requires: DealtFile::bytes of a plain file has an end.
// `min_bytes`: there are fewer rounds if blocks of plain files would have fewer bytes on average.
BlockDeal DealBlocks(absl::Span<const DealtFile> files, int workers, int64_t min_bytes);

}  // namespace tandem::data

#endif  // TANDEM_DATA_DEAL_BLOCKS_H_
