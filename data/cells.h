// Small parts that the text formats share: splitting a line into cells, parsing numbers, hashing
// values, quoting text for messages.
#ifndef TANDEM_DATA_CELLS_H_
#define TANDEM_DATA_CELLS_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::data {

// Splits `line` into `cells`, as far as they fit. Returns how many cells the line has. A delimiter
// is one or more bytes.
size_t SplitCells(absl::string_view line, char delimiter, absl::Span<absl::string_view> cells);
size_t SplitCells(absl::string_view line, absl::string_view delimiter,
                  absl::Span<absl::string_view> cells);

// The same for lines whose cells may stand in quotes (RFC 4180): "a, b" is one cell, and "" inside
// quotes is one quote. `trim`: blanks around a cell, also outside its quotes, do not belong to the
// cell. Cells that hold a quote refer to `texts`, which is overwritten. INVALID_ARGUMENT if a quote
// does not end, or if text follows the closing quote.
absl::StatusOr<size_t> SplitQuotedCells(absl::string_view line, absl::string_view delimiter,
                                        bool trim, absl::Span<absl::string_view> cells,
                                        std::deque<std::string>* texts);

// Whether a quoted cell is open at the end of `line`, so that it continues in the next line.
// `inside`: a quoted cell is open at the beginning of `line`.
bool EndsInQuotes(absl::string_view line, absl::string_view delimiter, bool trim, bool inside);

// `text` without the blanks and tabs around it.
absl::string_view Trimmed(absl::string_view text);

// Parses a finite decimal number that fills the whole text (a leading + is allowed). False
// otherwise.
bool ParseNumber(absl::string_view text, float* value);   // within a float's range
bool ParseNumber(absl::string_view text, double* value);  // within a double's range
bool ParseUnsigned(absl::string_view text, uint64_t* value);
// The id of a value in a field without hashing: a whole number of 64 bits.
bool ParseRawId(absl::string_view text, uint64_t* id);

// Whether the text is a number beyond the range of a float.
bool IsBeyondFloat(absl::string_view text);

// sign(x) log(1 + |x|).
float LogTransform(float x);

// 'text', cut to 40 bytes, safe in a one-line message: bytes that are no UTF-8 and characters that
// cannot be seen are escaped.
std::string Quote(absl::string_view text);

// The name of the key function, which checkpoints store. Change it whenever a cell would get
// another key.
inline constexpr char kKeyHashing[] = "xxh3 seeded by the field";

// The keys of the values of one categorical field. There is no vocabulary: the text is hashed to 64
// bits together with the field's name. The key is the same on every machine and for every seed.
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
