#include "tools/sim/sim_checkpoints.h"

#include <utility>

#include "base/no_room.h"
#include "base/status_macros.h"
#include "server/checkpoint/range_file.h"

namespace tandem::sim {

absl::Status SimCheckpoints::HasRoom() {
  if (context_.options.no_room.count(writes_++) == 0) return absl::OkStatus();
  ++context_.full_disks;
  context_.Log("the disk is full");
  return NoRoomError("the disk is full");
}

absl::Status SimCheckpoints::AddRange(const std::string& folder, const std::string& file,
                                      const std::string& bytes) {
  TANDEM_RETURN_IF_ERROR(HasRoom());
  TANDEM_ASSIGN_OR_RETURN(
      server::RangeImage image,
      server::DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
  if (context_.options.files != nullptr) {
    TANDEM_RETURN_IF_ERROR(context_.options.files->WriteRange(folder, image, bytes));
  }
  return context_.observer.OnRangeFile(folder, file, std::move(image));
}

absl::Status SimCheckpoints::AddDense(const std::string& folder, const std::string& bytes) {
  TANDEM_RETURN_IF_ERROR(HasRoom());
  TANDEM_RETURN_IF_ERROR(context_.observer.OnDenseFile(folder, bytes));
  if (context_.options.files == nullptr) return absl::OkStatus();
  return context_.options.files->WriteDense(folder, bytes);
}

absl::Status SimCheckpoints::AddWorker(const std::string& folder, int rank,
                                       const std::string& state, const std::string& program) {
  TANDEM_RETURN_IF_ERROR(HasRoom());
  return context_.options.files->WriteWorker(folder, rank, state, program);
}

absl::Status SimCheckpoints::Commit(const std::string& folder, const RangeMap& ranges, int64_t step,
                                    bool best, const std::string& record) {
  if (absl::Status room = HasRoom(); !room.ok()) {
    Abandon(folder);
    return room;
  }
  context_.observer.OnCommit(folder, ranges, step, record);
  if (context_.options.files == nullptr) return absl::OkStatus();
  return context_.options.files->Commit(folder, step, best, record);
}

void SimCheckpoints::Abandon(const std::string& folder) {
  context_.observer.OnAbandon(folder);
  if (context_.options.files != nullptr) context_.options.files->Abandon(folder);
}

}  // namespace tandem::sim
