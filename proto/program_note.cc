#include "proto/program_note.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/clip_text.h"
#include "base/utf8.h"

namespace tandem {
namespace {

constexpr size_t kMaxCharacters = 64;

}  // namespace

absl::Status CheckReportedName(const std::string& name) {
  const auto visible = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (!name.empty() && name.size() <= kMaxCharacters &&
      std::all_of(name.begin(), name.end(), visible)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the name of a reported value, \"", EscapeInvisible(ClipText(name, 80)),
                   "\": expected 1 to ", kMaxCharacters, " visible ASCII characters"));
}

}  // namespace tandem
