#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// The length in bytes of the character that `text` begins with; 0 if it is not well formed.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (length > text.size() || (first >= 0x80 && first < 0xc2) || first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (length == 1) return 1;
  const unsigned char second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;  // written longer than it needs to be
  if (first == 0xed && second > 0x9f) return 0;  // half of a UTF-16 pair
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;  // beyond the last character
  return length;
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Mark MarkOf(absl::string_view character) {
  if (character.size() < 2) return Mark::kVisible;
  const auto byte = [&](size_t i) { return uint32_t{static_cast<unsigned char>(character[i])}; };
  const auto rest = [&](size_t i) { return byte(i) & 0x3f; };
  const uint32_t code = character.size() == 2   ? (byte(0) & 0x1f) << 6 | rest(1)
                        : character.size() == 3 ? (byte(0) & 0x0f) << 12 | rest(1) << 6 | rest(2)
                                                : 0x10000;  // none of those below
  const auto within = [code](uint32_t first, uint32_t last) {
    return code >= first && code <= last;
  };
  if (code == 0xa0 || code == 0x1680 || code == 0x202f || code == 0x205f || code == 0x3000 ||
      within(0x2000, 0x200a)) {
    return Mark::kBlank;
  }
  const bool nothing = code < 0xa0 || code == 0xad || code == 0xfeff || within(0x200b, 0x200f) ||
                       within(0x2028, 0x202e) || within(0x2060, 0x206f);
  return nothing ? Mark::kNothing : Mark::kVisible;
}

size_t CharacterAt(absl::string_view text) { return std::max<size_t>(1, Utf8Length(text)); }

std::string EscapeInvisible(absl::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const absl::string_view character = text.substr(0, CharacterAt(text));
    const bool plain = character.size() > 1 && MarkOf(character) == Mark::kVisible;
    absl::StrAppend(&escaped, plain ? std::string(character) : absl::CHexEscape(character));
    text.remove_prefix(character.size());
  }
  return escaped;
}

}  // namespace tandem
