// The small pieces text formats share: splitting a line, numbers, hashed values, quoting.
#ifndef TANDEM_DATA_CELLS_H_
#define TANDEM_DATA_CELLS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::data {

// Cells of `line` into `cells`, as many as fit; returns how many the line has. A delimiter is one byte
// or more.
size_t SplitCells(absl::string_view line, char delimiter, absl::Span<absl::string_view> cells);
size_t SplitCells(absl::string_view line, absl::string_view delimiter,
                  absl::Span<absl::string_view> cells);

// The same where a cell may stand in quotes (RFC 4180): "a, b" is one cell, and "" in it is one
// quote. `trim`: blanks around a cell, also outside its quotes, are not part of it. Cells that hold
// a quote refer to `texts`, which is overwritten. INVALID_ARGUMENT: a quote that does not end, or that
// something follows.
absl::StatusOr<size_t> SplitQuotedCells(absl::string_view line, absl::string_view delimiter,
                                        bool trim, absl::Span<absl::string_view> cells,
                                        std::deque<std::string>* texts);

// Whether a cell in quotes is open at the end of `line`, and so goes on in the next one. `inside`: one
// is open at its beginning.
bool EndsInQuotes(absl::string_view line, absl::string_view delimiter, bool trim, bool inside);

// `text` without the blanks and tabs around it.
absl::string_view Trimmed(absl::string_view text);

// A finite decimal number that fills the whole text (a leading + is allowed); false otherwise.
bool ParseNumber(absl::string_view text, float* value);   // of a float's range
bool ParseNumber(absl::string_view text, double* value);  // of a double's range
bool ParseUnsigned(absl::string_view text, uint64_t* value);

// Whether the text is a number beyond the range of a float.
bool IsBeyondFloat(absl::string_view text);

// sign(x) log(1 + |x|).
float LogTransform(float x);

// Whether the bytes are well-formed UTF-8 (RFC 3629).
bool IsUtf8(absl::string_view text);

// 'text' with unprintable bytes escaped, cut to 40 bytes: safe in a one-line message.
std::string Quote(absl::string_view text);

// Stands in saves; changes whenever a cell would get another key.
inline constexpr char kKeyHashing[] = "xxh3 seeded by the field";

// Keys of the values of one categorical field. There is no vocabulary: the text is hashed to 64
// bits together with the field's name, the same on every machine and for every seed.
class FieldHash {
 public:
  explicit FieldHash(absl::string_view field);
  uint64_t Key(absl::string_view value) const;
  uint64_t Key(uint64_t id) const;
  uint64_t missing() const { return missing_; }  // the key of "no value"

 private:
  uint64_t salt_;
  uint64_t missing_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_CELLS_H_
