// The file of a job's model { script { ... } }, and what a save keeps of its module. Knows no LibTorch,
// so `tandem` can look at both before anything starts; what is in the file is for
// script_model.cc to say.
#ifndef TANDEM_MODELS_SCRIPT_FILE_H_
#define TANDEM_MODELS_SCRIPT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace tandem::models {

struct ScriptFile {
  std::string path;  // with the environment's variables in their places
  std::string bytes;
  std::string contents;  // a hash of `bytes`, in hexadecimal digits
};

// NOT_FOUND: there is no such file; INVALID_ARGUMENT: it is not what torch.jit.save writes.
absl::StatusOr<ScriptFile> ReadScriptFile(const Script& config);

// What a worker saves of its module beside parameters: whose it is, and DenseModel::State().
struct ModuleState {
  std::string contents;  // DenseModel::Contents()
  std::string state;
};
std::string EncodeModuleState(const ModuleState& state);
// DATA_LOSS: EncodeModuleState did not write it.
absl::StatusOr<ModuleState> ParseModuleState(const std::string& bytes);

// That a run goes on with the module that it began with: FAILED_PRECONDITION.
absl::Status CheckSameModule(const std::string& saved, const std::string& now);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_SCRIPT_FILE_H_
