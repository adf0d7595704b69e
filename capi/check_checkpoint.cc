#include "capi/check_checkpoint.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/checkpoint_directory.h"
#include "xxhash.h"

namespace tandem::capi {
namespace {

constexpr uint64_t kPieceBytes = 1 << 20;
constexpr uint64_t kChecksumBytes = 8;  // size of a file's checksum, which follows its contents

// Computes the checksum of a file's contents. Its length has been checked before.
absl::StatusOr<uint64_t> ChecksumOf(const std::string& path, uint64_t bytes) {
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(),
                                                                              XXH3_freeState);
  XXH3_64bits_reset(state.get());
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(kPieceBytes);
  uint64_t left = bytes < kChecksumBytes ? 0 : bytes - kChecksumBytes;
  while (left > 0) {
    const uint64_t now = std::min(left, kPieceBytes);
    if (!file.read(piece.data(), static_cast<std::streamsize>(now))) {
      return absl::DataLossError(absl::StrCat(path, ": cannot read the whole file"));
    }
    XXH3_64bits_update(state.get(), piece.data(), now);
    left -= now;
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

absl::Status CheckCheckpoint(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(folder));
  for (const server::CheckpointFile& file : saved.manifest().files) {
    const std::string path = saved.PathOf(file);
    TANDEM_ASSIGN_OR_RETURN(const uint64_t checksum, ChecksumOf(path, file.bytes));
    if (checksum == file.checksum) continue;
    return absl::DataLossError(
        absl::StrFormat("%s: its bytes have checksum %#x, the manifest says %#x: damaged, or of "
                        "another checkpoint?",
                        path, checksum, file.checksum));
  }
  return absl::OkStatus();
}

}  // namespace tandem::capi
