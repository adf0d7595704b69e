// One key range as bytes: the saved file of a range, and what a range move carries.
//
// Contents: table name, dim, optimizer name, [begin, end), progress (version and the exactly-once
// memory of each worker), keys, weights, slots, held updates; a checksum over everything. Layout in
// server/range_file.md. Pure functions of bytes, but for ReadRangeFileEnds; which files make up a
// saved model is in save_directory.h.
#ifndef TANDEM_SERVER_RANGE_FILE_H_
#define TANDEM_SERVER_RANGE_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "policies/policy.h"
#include "server/range_store.h"

namespace tandem::server {

inline constexpr size_t kMaxNameBytes = 4096;  // of a table or an optimizer

struct RangeImage {
  std::string table;
  int dim = 0;
  int slots_per_row = 0;
  std::string optimizer;        // RowOptimizer::name()
  uint64_t begin = 0, end = 0;  // positions; end 0 = 2^64
  policies::RangeProgress progress;
  std::vector<uint64_t> keys;  // in order of position
  std::vector<float> weights;  // [keys, dim]
  std::vector<float> slots;    // [keys, slots_per_row]
  std::string held;            // opaque: updates held by the policy (range moves only)
};

// Rows of the store, weights and slots apart. Requires: unique keys.
void CopyRows(const RangeStore& store, absl::Span<const uint64_t> keys, absl::Span<float> weights,
              absl::Span<float> slots);

// A range on its way to bytes, a slice of rows at a time.
class RangeEncoder {
 public:
  // `head`: the image with its keys but without weights and slots; names up to kMaxNameBytes.
  explicit RangeEncoder(const RangeImage& head);

  // Rows keys[first], keys[first + 1], ...
  void SetRows(size_t first, absl::Span<const float> weights, absl::Span<const float> slots);
  // The whole file. Once, when all rows are set.
  std::string Finish();

 private:
  std::string bytes_;
  size_t dim_, slots_per_row_;
  size_t weights_at_, slots_at_;  // offsets
};

// Requires: vectors of the lengths that the counts say, names up to kMaxNameBytes.
std::string EncodeRange(const RangeImage& image);
// DATA_LOSS or INVALID_ARGUMENT, with offsets and numbers, for bytes that are not a whole range.
absl::StatusOr<RangeImage> DecodeRange(absl::Span<const uint8_t> bytes);

// Does a position lie in [begin, end)? (end 0 = 2^64)
inline bool InRange(uint64_t position, uint64_t begin, uint64_t end) {
  return position >= begin && (end == 0 || position < end);
}

// Assigns the rows of `image` whose position in the store lies in [begin, end) (end 0 = 2^64), so
// that files saved by any number of ranges load into any other. INVALID_ARGUMENT, before anything
// changes, if table (where the store knows its own), dim, slots or optimizer differ.
absl::Status LoadInto(const RangeImage& image, uint64_t begin, uint64_t end, RangeStore* store);

// The checksum that a whole range ends with.
uint64_t StoredChecksum(absl::Span<const uint8_t> bytes);

// What the two ends of a file say, without reading what lies between.
struct RangeFileEnds {
  std::string table;
  uint64_t begin = 0, end = 0;
  uint64_t bytes = 0;  // of the whole file
  uint64_t checksum = 0;
};
// DATA_LOSS if the file is not whole; NOT_FOUND. The message names the file.
absl::StatusOr<RangeFileEnds> ReadRangeFileEnds(const std::string& path);
// The keys of its rows, without reading weights and slots; no checksum is compared. Errors as above.
absl::StatusOr<std::vector<uint64_t>> ReadRangeFileKeys(const std::string& path);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RANGE_FILE_H_
