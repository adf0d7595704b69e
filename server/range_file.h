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

std::string EncodeRange(const RangeImage& image);
// DATA_LOSS or INVALID_ARGUMENT, with offsets and numbers, for bytes that are not a whole range.
absl::StatusOr<RangeImage> DecodeRange(absl::Span<const uint8_t> bytes);

// Atomic: either the whole file is at `path` afterwards or what was there before.
// RESOURCE_EXHAUSTED when the disk is full.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace tandem

#endif  // TANDEM_SERVER_RANGE_FILE_H_
