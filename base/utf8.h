// Characters of a text that a user has written, for checks and messages.
#ifndef TANDEM_BASE_UTF8_H_
#define TANDEM_BASE_UTF8_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem {

// Whether the bytes are well-formed UTF-8 (RFC 3629).
bool IsUtf8(absl::string_view text);

// The bytes of the character that `text`, which is not empty, begins with; 1 if it is no UTF-8.
size_t CharacterAt(absl::string_view text);

// How a character of several bytes looks: like a blank (a no-break space), or like nothing (a mark
// without a width, a control character).
enum class Mark { kVisible, kBlank, kNothing };
Mark MarkOf(absl::string_view character);

// `text`, safe in a one-line message: quotes, bytes that are no UTF-8, and characters that cannot
// be seen are escaped.
std::string EscapeInvisible(absl::string_view text);

}  // namespace tandem

#endif  // TANDEM_BASE_UTF8_H_
