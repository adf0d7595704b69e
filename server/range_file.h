// One key range as bytes: the saved file of a range, and what a range move carries.
//
// Contents: table name, dim, optimizer name, [begin, end), progress (version and the exactly-once
// memory of each worker), keys, weights, slots; a checksum over everything. Layout in
// server/range_file.md. Writing is atomic: a temporary file, fsync, rename.
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

namespace tandem {

inline constexpr size_t kMaxNameBytes = 4096;  // of a table or an optimizer

struct RangeImage {
  std::string table;
  int dim = 0;
  int slots_per_row = 0;
  std::string optimizer;        // RowOptimizer::name()
  uint64_t begin = 0, end = 0;  // positions; end 0 = 2^64
  RangeProgress progress;
  std::vector<uint64_t> keys;  // in order of position
  std::vector<float> weights;  // [keys, dim]
  std::vector<float> slots;    // [keys, slots_per_row]
  std::string held;            // opaque: updates held by the policy (range moves only)
};

RangeImage ImageOf(const RangeStore& store, absl::string_view table, absl::string_view optimizer,
                   uint64_t begin, uint64_t end, const RangeProgress& progress);

// Requires: vectors of the lengths that the counts say, names up to kMaxNameBytes.
std::string EncodeRange(const RangeImage& image);
// DATA_LOSS or INVALID_ARGUMENT, with offsets and numbers, for bytes that are not a whole range.
absl::StatusOr<RangeImage> DecodeRange(absl::Span<const uint8_t> bytes);

// Assigns the rows of `image` whose position lies in [begin, end) (end 0 = 2^64), so that files
// load on another number of ranges. INVALID_ARGUMENT if dim, slots or optimizer are not the
// store's.
absl::Status LoadInto(const RangeImage& image, uint64_t begin, uint64_t end, RangeStore* store);

// Assigns the rows of `image` whose position in the store lies in [begin, end) (end 0 = 2^64), so
// that files saved by any number of ranges load into any other. INVALID_ARGUMENT, before anything
// changes, if table (where the store knows its own), dim, slots or optimizer differ.
absl::Status LoadInto(const RangeImage& image, uint64_t begin, uint64_t end, RangeStore* store);

// Atomic: either the whole file is at `path` afterwards or what was there before.
// RESOURCE_EXHAUSTED when the disk is full.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// The two together; errors name the file.
absl::Status WriteRangeFile(const std::string& path, const RangeImage& image);
absl::StatusOr<RangeImage> ReadRangeFile(const std::string& path);

}  // namespace tandem

#endif  // TANDEM_SERVER_RANGE_FILE_H_
