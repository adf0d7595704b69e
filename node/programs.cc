#include "node/programs.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/process.h"

namespace tandem::node {
namespace {

constexpr char kWorkerVariable[] = "TANDEM_WORKER";

}  // namespace

std::string ProgramPath(absl::string_view name) {
  const char* const worker = name == kWorkerProgram ? std::getenv(kWorkerVariable) : nullptr;
  if (worker != nullptr && *worker != '\0') return worker;
  return absl::StrCat(ProgramFolder(), "/", name);
}

absl::Status CheckProgram(absl::string_view name) {
  const std::string path = ProgramPath(name);
  if (access(path.c_str(), X_OK) == 0) return absl::OkStatus();
  const std::filesystem::path build = std::filesystem::path(ProgramFolder()).parent_path();
  std::error_code error;
  if (std::filesystem::exists(build / "build.ninja", error)) {
    return absl::NotFoundError(
        absl::StrCat(path, " is not built; hint: ninja -C ", build.string(), " ", name));
  }
  const std::string hint =
      name == kWorkerProgram
          ? absl::StrCat("compiled models need a source build; hint: ", kWorkerVariable,
                         "=.../build/bin/", kWorkerProgram,
                         ", or a model of your own with --python")
          : "hint: install all programs into one folder";
  return absl::NotFoundError(absl::StrCat(path, " is not there; ", hint));
}

}  // namespace tandem::node
