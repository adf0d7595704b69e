// SimCheckpoints writes the checkpoints of a simulated world. The observer sees them. Files also go
// to WorldOptions::files, unless it is null or the disk is full (WorldOptions::no_room).
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_CHECKPOINTS_H_
#define TANDEM_TOOLS_SIM_SIM_CHECKPOINTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/range_map.h"
#include "tools/sim/sim_context.h"

namespace tandem::sim {

class SimCheckpoints {
 public:
  // `context` must outlive this.
  explicit SimCheckpoints(SimContext& context) : context_(context) {}

  // Each call writes one file. An error with the mark of base/no_room.h: the disk is full.
  absl::Status AddRange(const std::string& folder, const std::string& file,
                        const std::string& bytes);
  absl::Status AddDense(const std::string& folder, const std::string& bytes);
  absl::Status AddWorker(const std::string& folder, int rank, const std::string& state,
                         const std::string& program);
  // The files are complete. `step`, `best` and `record`: as in CommitCheckpointTask. Abandons the
  // checkpoint if the disk is full.
  absl::Status Commit(const std::string& folder, const RangeMap& ranges, int64_t step, bool best,
                      const std::string& record);
  // The checkpoint failed. Removes its folder.
  void Abandon(const std::string& folder);

 private:
  absl::Status HasRoom();

  SimContext& context_;
  int64_t writes_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_CHECKPOINTS_H_
