// Receives the checkpoints of a simulated world: the files that a live job would write, one after
// the other, and last the notice that the checkpoint is complete. Folders have the same names as in
// a live job, below a folder that the receiver chooses.
#ifndef TANDEM_TOOLS_SIM_CHECKPOINT_FILES_H_
#define TANDEM_TOOLS_SIM_CHECKPOINT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/checkpoint/range_file.h"

namespace tandem::sim {

class CheckpointFiles {
 public:
  virtual ~CheckpointFiles() = default;
  // `bytes`: the range file with the contents of `image`.
  virtual absl::Status WriteRange(const std::string& folder, const server::RangeImage& image,
                                  const std::string& bytes) = 0;
  virtual absl::Status WriteDense(const std::string& folder, const std::string& bytes) = 0;
  // The state that only worker `rank` has: of its dense replica, and of its module. Empty:
  // no state.
  virtual absl::Status WriteWorker(const std::string& folder, int rank, const std::string& state,
                                   const std::string& program) = 0;
  // All files are written. `step`: the checkpoint has the steps before this one.
  // `record`: RunRecord.
  virtual absl::Status Commit(const std::string& folder, int64_t step, bool best,
                              const std::string& record) = 0;
  // The checkpoint has failed: its files are removed.
  virtual void Abandon(const std::string& folder) = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_CHECKPOINT_FILES_H_
