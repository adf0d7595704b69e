#include "capi/check_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "xxhash.h"

namespace tandem::capi {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr uint64_t kChecksumBytes = 8;  // size of the checksum at the end of a range file

// Reads the bytes of a range or part, whose file has the full length, and compares the checksum.
absl::Status CheckBytes(const std::string& path, const std::string& place,
                        const server::CheckpointFile& facts) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(facts.offset));
  std::vector<char> piece(kPieceBytes);
  const auto read = [&](uint64_t bytes) {
    return static_cast<bool>(file.read(piece.data(), static_cast<std::streamsize>(bytes)));
  };
  const auto unreadable = [&] {
    return absl::DataLossError(absl::StrCat(place, ": cannot read the whole file"));
  };
  uint64_t left = facts.bytes < kChecksumBytes ? 0 : facts.bytes - kChecksumBytes;
  while (left > 0) {
    const uint64_t now = std::min(left, kPieceBytes);
    if (!read(now)) return unreadable();
    XXH3_64bits_update(state.get(), piece.data(), now);
    left -= now;
  }
  uint64_t stored = 0;
  if (!read(kChecksumBytes)) return unreadable();
  std::memcpy(&stored, piece.data(), sizeof stored);
  const uint64_t computed = XXH3_64bits_digest(state.get());
  if (computed != facts.checksum || stored != computed) {
    return absl::DataLossError(
        absl::StrFormat("%s: its bytes have checksum %#x, the file says %#x, the manifest %#x: "
                        "damaged, or of another checkpoint?",
                        place, computed, stored, facts.checksum));
  }
  if (!server::IsSegment(facts.name)) return absl::OkStatus();
  for (uint64_t at = facts.bytes; at % server::kSegmentAlign != 0; ++at) {
    if (!read(1)) return unreadable();
    if (piece[0] != 0) {
      return absl::DataLossError(
          absl::StrCat(path, ": padding at offset ", facts.offset + at, " is not 0"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCheckpoint(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(folder));
  for (const server::CheckpointFile& file : saved.manifest().files) {
    TANDEM_RETURN_IF_ERROR(CheckBytes(saved.PathOf(file), saved.PlaceOf(file), file));
  }
  return absl::OkStatus();
}

}  // namespace tandem::capi
