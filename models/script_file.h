// Reads the file of a job's model { script { ... } }, and encodes what a checkpoint keeps of its
// module. The header needs no LibTorch, so `tandem` can read both before anything starts.
// script_model.cc checks the module itself.
#ifndef TANDEM_MODELS_SCRIPT_FILE_H_
#define TANDEM_MODELS_SCRIPT_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace tandem::models {

struct ScriptFile {
  std::string path;  // path with environment variables replaced
  std::string bytes;
  std::string contents;  // hash of `bytes` as hexadecimal digits
};

// NOT_FOUND: the file does not exist. INVALID_ARGUMENT: torch.jit.save does not write such files.
absl::StatusOr<ScriptFile> ReadScriptFile(const Script& config);

// The part of a checkpoint that a worker writes of its module beside the parameters: the identity
// of the module, and its DenseModel::State().
struct ModuleState {
  std::string contents;  // DenseModel::Contents()
  std::string state;
};
std::string EncodeModuleState(const ModuleState& state);
// DATA_LOSS: the bytes are not a result of EncodeModuleState.
absl::StatusOr<ModuleState> ParseModuleState(const std::string& bytes);

// FAILED_PRECONDITION if a resumed run would not train the module that it began with.
absl::Status CheckSameModule(const std::string& saved, const std::string& now);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_SCRIPT_FILE_H_
