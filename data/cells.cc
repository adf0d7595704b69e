#include "data/cells.h"

#include <charconv>
#include <cmath>
#include <system_error>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace tandem::data {

size_t SplitCells(absl::string_view line, char delimiter, absl::Span<absl::string_view> cells) {
  size_t count = 0, begin = 0;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] != delimiter) continue;
    if (count < cells.size()) cells[count] = line.substr(begin, i - begin);
    ++count;
    begin = i + 1;
  }
  return count;
}

size_t SplitCells(absl::string_view line, absl::string_view delimiter,
                  absl::Span<absl::string_view> cells) {
  if (delimiter.size() == 1) return SplitCells(line, delimiter[0], cells);
  for (size_t count = 0;; ++count) {
    const size_t end = line.find(delimiter);
    if (count < cells.size()) cells[count] = line.substr(0, end);
    if (end == absl::string_view::npos) return count + 1;
    line.remove_prefix(end + delimiter.size());
  }
}

namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// Skips blanks at the front of `line`, but no delimiter (which may be a blank or a tab).
void SkipBlanks(absl::string_view delimiter, absl::string_view* line) {
  while (!line->empty() && IsBlank((*line)[0]) && !absl::StartsWith(*line, delimiter)) {
    line->remove_prefix(1);
  }
}

// Takes a cell in quotes off the front of `rest`, including the closing quote.
absl::StatusOr<absl::string_view> TakeQuoted(absl::string_view* rest,
                                             std::deque<std::string>* texts) {
  const absl::string_view whole = *rest;
  std::string* text = nullptr;  // set at the first quote inside
  for (size_t begin = 1;;) {
    const size_t quote = whole.find('"', begin);
    if (quote == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("the quote of the cell ", Quote(whole),
                       " does not end; hint: a quote inside quotes is written twice; if quotes are "
                       "text like any other, data.columns.quotes: NONE"));
    }
    const bool twice = quote + 1 < whole.size() && whole[quote + 1] == '"';
    if (twice && text == nullptr) text = &texts->emplace_back();
    if (text != nullptr)
      absl::StrAppend(text, whole.substr(begin, quote + (twice ? 1 : 0) - begin));
    begin = quote + 2;
    if (twice) continue;
    rest->remove_prefix(quote + 1);
    return text != nullptr ? absl::string_view(*text) : whole.substr(1, quote - 1);
  }
}

}  // namespace

absl::string_view Trimmed(absl::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

absl::StatusOr<size_t> SplitQuotedCells(absl::string_view line, absl::string_view delimiter,
                                        bool trim, absl::Span<absl::string_view> cells,
                                        std::deque<std::string>* texts) {
  texts->clear();
  const auto skip_blanks = [&] {
    if (trim) SkipBlanks(delimiter, &line);
  };
  for (size_t count = 0;; ++count) {
    absl::string_view cell;
    skip_blanks();
    if (!line.empty() && line[0] == '"') {
      const absl::string_view whole = line;
      TANDEM_ASSIGN_OR_RETURN(cell, TakeQuoted(&line, texts));
      skip_blanks();
      if (!line.empty() && !absl::StartsWith(line, delimiter)) {
        return absl::InvalidArgumentError(
            absl::StrCat("text follows the closing quote of the cell ", Quote(whole),
                         "; hint: a quote inside quotes is written twice; if quotes are text like "
                         "any other, data.columns.quotes: NONE"));
      }
    } else {
      cell = line.substr(0, line.find(delimiter));
      line.remove_prefix(cell.size());
      if (trim) cell = Trimmed(cell);
    }
    if (count < cells.size()) cells[count] = cell;
    if (line.empty()) return count + 1;
    line.remove_prefix(delimiter.size());
  }
}

bool EndsInQuotes(absl::string_view line, absl::string_view delimiter, bool trim, bool inside) {
  if (!inside && line.find('"') == absl::string_view::npos) return false;
  for (;;) {
    if (!inside && trim) SkipBlanks(delimiter, &line);
    if (!inside && absl::ConsumePrefix(&line, "\"")) inside = true;
    while (inside) {
      const size_t quote = line.find('"');
      if (quote == absl::string_view::npos) return true;
      line.remove_prefix(quote + 1);
      inside = absl::ConsumePrefix(&line, "\"");  // two quotes stand for one inside the cell
    }
    const size_t end = line.find(delimiter);
    if (end == absl::string_view::npos) return false;
    line.remove_prefix(end + delimiter.size());
  }
}

namespace {

// Removes a leading +, which people write in front of labels and values and from_chars does not
// accept.
absl::string_view WithoutPlus(absl::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

template <typename T>
bool ParseWhole(absl::string_view text, T* value) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && at == end;
}

// Whether the text is a decimal number beyond the range of a double: too large, or so small that it
// is 0.
bool IsOutOfRange(absl::string_view text) {
  double ignored = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, ignored);
  return error == std::errc::result_out_of_range && at == end;
}

// Parses whole numbers of few digits. Such numbers are the usual case, and parsing them this way
// takes a third of the time of a general decimal.
bool ParseSmallInteger(absl::string_view text, double* value) {
  if (text.empty() || text.size() > 7) return false;
  uint32_t sum = 0;
  for (const char c : text) {
    const uint32_t digit = static_cast<unsigned char>(c) - uint32_t{'0'};
    if (digit > 9) return false;
    sum = sum * 10 + digit;
  }
  *value = sum;
  return true;
}

}  // namespace

bool ParseNumber(absl::string_view text, double* value) {
  if (ParseSmallInteger(text, value)) return true;
  text = WithoutPlus(text);
  if (ParseWhole(text, value)) return std::isfinite(*value);
  return IsOutOfRange(text) && absl::SimpleAtod(text, value) && *value == 0;
}

bool ParseNumber(absl::string_view text, float* value) {
  double wide = 0;  // parsed as double, since a float would refuse 1e-50 as out of range
  if (!ParseNumber(text, &wide)) return false;
  *value = static_cast<float>(wide);
  return std::isfinite(*value);
}

bool IsBeyondFloat(absl::string_view text) {
  double wide = 0;
  float narrow = 0;
  const bool beyond_double = IsOutOfRange(WithoutPlus(text)) && !ParseNumber(text, &wide);
  return beyond_double || (ParseNumber(text, &wide) && !ParseNumber(text, &narrow));
}

bool ParseUnsigned(absl::string_view text, uint64_t* value) { return ParseWhole(text, value); }

bool ParseRawId(absl::string_view text, uint64_t* id) {
  int64_t negative = 0;
  if (ParseUnsigned(text, id)) return true;
  if (!absl::StartsWith(text, "-") || !absl::SimpleAtoi(text, &negative)) return false;
  *id = static_cast<uint64_t>(negative);
  return true;
}

float LogTransform(float x) { return std::copysign(std::log1p(std::fabs(x)), x); }

std::string Quote(absl::string_view text) {
  constexpr size_t kShown = 40;
  std::string shown;
  while (!text.empty()) {
    const absl::string_view character = text.substr(0, CharacterAt(text));
    if (shown.size() + character.size() > kShown) break;
    absl::StrAppend(&shown, EscapeInvisible(character));
    text.remove_prefix(character.size());
  }
  return absl::StrCat("'", shown, text.empty() ? "'" : "...'");
}

FieldHash::FieldHash(absl::string_view field)
    : salt_(HashName(field)), missing_(HashCombine(salt_, HashName("missing value"))) {}

uint64_t FieldHash::Key(absl::string_view value) const {
  return XXH3_64bits_withSeed(value.data(), value.size(), salt_);
}

uint64_t FieldHash::Key(uint64_t id) const { return HashCombine(salt_, id); }

}  // namespace tandem::data
