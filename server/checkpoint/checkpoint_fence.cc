#include "server/checkpoint/checkpoint_fence.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

std::string FenceIn(const std::string& model_folder) { return model_folder + "/FENCE"; }

}  // namespace

std::string TextOf(const AttemptId& id) {
  return absl::StrFormat("%016x %d\n", id.run, id.attempt);
}

absl::StatusOr<AttemptId> ReadAttempt(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const std::vector<std::string> parts = absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  AttemptId id;
  if (parts.size() == 2 && absl::SimpleHexAtoi(parts[0], &id.run) &&
      absl::SimpleAtoi(parts[1], &id.attempt) && id.attempt >= 0) {
    return id;
  }
  return absl::DataLossError(absl::StrCat(path, ": names no attempt of a run: \"", text, "\""));
}

absl::Status RaiseFence(const std::string& model_folder, const AttemptId& id) {
  TANDEM_RETURN_IF_ERROR(MakeFolder(model_folder));
  return WriteFileAtomically(FenceIn(model_folder), TextOf(id));
}

absl::Status CheckFence(const std::string& model_folder, const AttemptId& id) {
  const absl::StatusOr<AttemptId> fence = ReadAttempt(FenceIn(model_folder));
  if (absl::IsNotFound(fence.status())) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(fence.status());
  if (fence->run == id.run && fence->attempt <= id.attempt) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: attempt %d of run %016x has begun, and this process is of attempt %d of run %016x: its "
      "checkpoint does not count, and it must end",
      FenceIn(model_folder), fence->attempt, fence->run, id.attempt, id.run));
}

}  // namespace tandem::server
