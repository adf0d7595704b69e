#include "worker/dense/initial_values.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "collectives/types.h"

namespace tandem::worker {
namespace {

// The hash of the file, then one line per parameter.
std::string Describe(const OwnModule& module) {
  std::string text = absl::StrCat(module.contents, "\n");
  for (const server::CheckpointParameter& parameter : module.parameters) {
    absl::StrAppend(&text, DebugString(parameter), "\n");
  }
  return text;
}

absl::StatusOr<std::string> OfRankZero(collectives::Group& group, const std::string& own) {
  auto bytes = static_cast<int64_t>(own.size());
  TANDEM_RETURN_IF_ERROR(
      group.Wait(group.Broadcast(&bytes, &bytes, 1, collectives::DataType::kI64, 0)));
  std::string text = own;
  text.resize(static_cast<size_t>(bytes));
  TANDEM_RETURN_IF_ERROR(
      group.Wait(group.Broadcast(text.data(), text.data(), bytes, collectives::DataType::kU8, 0)));
  return text;
}

// Requires: the two texts differ.
std::string FirstDifference(const std::string& own, const std::string& first) {
  const std::vector<std::string> here = absl::StrSplit(own, '\n');
  const std::vector<std::string> there = absl::StrSplit(first, '\n');
  if (here[0] != there[0]) {
    return absl::StrCat("model.script.file: contents differ from those on worker 0 (hash ", here[0],
                        " here, ", there[0], " there); hint: copy one file to every host");
  }
  size_t i = 1;
  while (i + 1 < here.size() && i + 1 < there.size() && here[i] == there[i]) ++i;
  const auto shown = [i](const std::vector<std::string>& lines) {
    return i + 1 < lines.size() ? lines[i] : std::string("none");
  };
  return absl::StrCat("dense parameter ", i - 1, " is ", shown(here), " here and ", shown(there),
                      " on worker 0; hint: build the same module on every worker");
}

}  // namespace

absl::Status ShareInitialValues(collectives::Group& group, const OwnModule& module,
                                absl::Span<float> values) {
  if (group.ranks() == 1) return absl::OkStatus();
  const std::string own = Describe(module);
  TANDEM_ASSIGN_OR_RETURN(const std::string first, OfRankZero(group, own));
  if (own != first) return absl::InvalidArgumentError(FirstDifference(own, first));
  if (values.empty()) return absl::OkStatus();
  return group.Wait(group.Broadcast(values.data(), values.data(),
                                    static_cast<int64_t>(values.size()),
                                    collectives::DataType::kF32, 0));
}

}  // namespace tandem::worker
