// ClipText bounds a text that goes into a message.
#ifndef TANDEM_BASE_CLIP_TEXT_H_
#define TANDEM_BASE_CLIP_TEXT_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tandem {

// The first bytes of the text, at most `most`. Cuts no UTF-8 character in two.
inline absl::string_view ClipText(absl::string_view text, size_t most) {
  if (text.size() <= most) return text;
  const auto is_inside = [&text](size_t at) { return (text[at] & 0xc0) == 0x80; };
  while (most > 0 && is_inside(most)) --most;
  return text.substr(0, most);
}

}  // namespace tandem

#endif  // TANDEM_BASE_CLIP_TEXT_H_
