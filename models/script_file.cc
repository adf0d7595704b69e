#include "models/script_file.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "data/files.h"
#include "xxhash.h"

namespace tandem::models {
namespace {

constexpr char kKnob[] = "model.script.file";
constexpr absl::string_view kZip("PK\3\4", 4);
constexpr absl::string_view kConstants = "/constants.pkl";
constexpr absl::string_view kStateTag = "torchscript ";

}  // namespace

absl::StatusOr<ScriptFile> ReadScriptFile(const Script& config) {
  TANDEM_ASSIGN_OR_RETURN(const auto paths, data::ExpandFiles(kKnob, config.file()));
  if (paths.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(kKnob, ": '", config.file(), "' stands for ",
                                                   paths.size(), " files; name one"));
  }
  ScriptFile file;
  file.path = paths[0];
  absl::StatusOr<std::string> bytes = ReadWholeFile(file.path);
  if (!bytes.ok()) {
    return absl::Status(bytes.status().code(), absl::StrCat(kKnob, ": ", bytes.status().message()));
  }
  file.bytes = *std::move(bytes);
  const bool archive = absl::StartsWith(file.bytes, kZip);
  if (!archive || !absl::StrContains(file.bytes, kConstants)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kKnob, ": ", file.path, ": is no TorchScript file",
        archive ? ", but an archive without constants.pkl, such as torch.save writes" : "",
        "; hint: torch.jit.script(module).save(\"", config.file(), "\") writes one"));
  }
  const XXH128_hash_t hash = XXH3_128bits(file.bytes.data(), file.bytes.size());
  file.contents = absl::StrFormat("%016x%016x", hash.high64, hash.low64);
  return file;
}

std::string EncodeModuleState(const ModuleState& state) {
  return absl::StrCat(kStateTag, state.contents, "\n", state.state);
}

absl::StatusOr<ModuleState> ParseModuleState(const std::string& bytes) {
  const size_t end = bytes.find('\n');
  if (!absl::StartsWith(bytes, kStateTag) || end == std::string::npos) {
    return absl::DataLossError(
        "state of a module: these bytes are not the state of a TorchScript module");
  }
  ModuleState state;
  state.contents = bytes.substr(kStateTag.size(), end - kStateTag.size());
  state.state = bytes.substr(end + 1);
  return state;
}

absl::Status CheckSameModule(const std::string& saved, const std::string& now) {
  if (saved == now) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      kKnob, ": the module has changed since the checkpoint was made (its hash was ", saved,
      ", and is ", now,
      "); hint: a run goes on with the module it began with; to train another one with the ",
      "same parameters, begin with the checkpoint: --init-from"));
}

}  // namespace tandem::models
