// Holds the saves of a simulated world to what a save is: every range once, all at the same point of
// the job, and dense parameters as they should be. Keeps files in memory in place of a disk.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_SAVE_CHECK_H_
#define TANDEM_SIM_SAVE_CHECK_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "proto/range_map.h"
#include "server/range_file.h"
#include "sim/sim_context.h"

namespace tandem::sim {

class SaveCheck {
 public:
  explicit SaveCheck(SimContext& context) : context_(context) {}  // which outlives this

  // A server has written a range of a save.
  absl::Status Add(const std::string& folder, const std::string& file, const std::string& bytes);
  // Rank 0 has written the file of `count` dense parameters, once every worker stands still.
  absl::Status AddDense(const std::string& folder, int64_t count, const std::string& bytes);
  // All files of a save are there.
  void Commit(const std::string& folder, const RangeMap& ranges);

  int saves() const { return saves_; }  // committed

 private:
  using Files = std::map<std::string, server::RangeImage>;  // by name
  const policies::Properties& PolicyOf(const std::string& table) const;
  void CheckHeldBack(const Files& files);
  void CheckSteps(const Files& files);

  SimContext& context_;
  std::map<std::string, Files> saves_under_way_;  // by folder
  int saves_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_SAVE_CHECK_H_
