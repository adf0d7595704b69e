#include "proto/program_note.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

constexpr size_t kMostCharacters = 64;

}  // namespace

absl::Status CheckReported(const std::string& name, double value) {
  const auto visible = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (name.empty() || name.size() > kMostCharacters ||
      !std::all_of(name.begin(), name.end(), visible)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the name of a reported value, \"", absl::CHexEscape(name.substr(0, 80)),
                     "\": expected 1 to ", kMostCharacters, " visible ASCII characters"));
  }
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reported value ", name, " is ", value, ", expected a finite number"));
}

}  // namespace tandem
