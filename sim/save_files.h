// Where the saves of a simulated world go, if anybody wants them: the files that a live job would write,
// one after the other, and last the word that the save is whole. Folders have the names that they have in a
// live job, below whatever folder the receiver chooses.
#ifndef TANDEM_SIM_SAVE_FILES_H_
#define TANDEM_SIM_SAVE_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tandem::sim {

class SaveFiles {
 public:
  virtual ~SaveFiles() = default;
  virtual absl::Status WriteRange(const std::string& folder, const std::string& file,
                                  const std::string& bytes) = 0;
  virtual absl::Status WriteDense(const std::string& folder, const std::string& bytes) = 0;
  // What only worker `rank` knows: of its replica of the dense parameters, and of its module. Empty: nothing.
  virtual absl::Status WriteWorker(const std::string& folder, int rank, const std::string& state,
                                   const std::string& program) = 0;
  // All files are there. `step`: the steps before it are in the save; `record`: RunRecord.
  virtual absl::Status Commit(const std::string& folder, int64_t step, bool best,
                              const std::string& record) = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_SAVE_FILES_H_
