// Checks the checkpoints of a simulated world: each range is there once, all ranges are cut at the
// positions of the workers in the run record, and rows and dense parameters have exactly the
// updates before the cut, although training continues while they are written. Keeps files in
// memory, not on disk.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_CHECKPOINT_CHECK_H_
#define TANDEM_TESTS_SIM_PROOF_CHECKPOINT_CHECK_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/range_map.h"
#include "proto/wire.pb.h"
#include "server/checkpoint/range_file.h"
#include "tests/sim/proof/judge.h"
#include "tools/sim/sim_context.h"

namespace tandem {

class CheckpointCheck {
 public:
  // `context` must outlive this.
  explicit CheckpointCheck(sim::SimContext& context) : context_(context) {}

  // The judge of the toy model. Without one, values are not checked.
  void set_judge(Judge* judge) { judge_ = judge; }
  // A server has written a range of a checkpoint.
  absl::Status Add(const std::string& folder, const std::string& file, server::RangeImage image);
  // Rank 0 has written the file of `count` dense parameters.
  absl::Status AddDense(const std::string& folder, int64_t count, const std::string& bytes);
  // All files of a checkpoint are written. `step` and `record` are as in CommitCheckpointTask.
  void Commit(const std::string& folder, const RangeMap& ranges, int64_t step,
              const std::string& record);

  // The checkpoint has failed, and its folder is removed.
  void Abandon(const std::string& folder);

  int checkpoints() const { return checkpoints_; }  // committed

 private:
  using Files = std::map<std::string, server::RangeImage>;  // by name
  const policies::Properties& PolicyOf(const std::string& table) const;
  void CheckHeldBack(const Files& files);
  void CheckSteps(const Files& files);
  void CheckCut(const Files& files, const RunRecord& record);
  void CheckCounts(const std::string& folder, const RunRecord& record);
  void CheckRows(const Files& files);

  sim::SimContext& context_;
  Judge* judge_ = nullptr;
  std::map<std::string, Files> checkpoints_under_way_;      // by folder
  std::map<std::string, std::vector<float>> dense_values_;  // by folder
  int checkpoints_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_CHECKPOINT_CHECK_H_
