#include "data/labels.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "data/cells.h"

namespace tandem::data {
namespace {

// Whether the text is one that pandas and other programs write for a missing value, in any case of
// its letters.
bool IsUsuallyMissing(absl::string_view text) {
  static constexpr absl::string_view kTexts[] = {
      "",     "nan",  "-nan",    "na",        "n/a",     "#na",      "#n/a",    "<na>",   "nat",
      "null", "none", "nil",     "#n/a n/a",  "1.#qnan", "-1.#qnan", "-1.#ind", "1.#ind", "?",
      "\\n",  "n.a.", "missing", "undefined", "(null)",  "#null!",   "#value!"};
  return std::any_of(std::begin(kTexts), std::end(kTexts),
                     [text](absl::string_view t) { return absl::EqualsIgnoreCase(t, text); });
}

}  // namespace

LabelMap::Text::Text(absl::string_view bytes) : text(bytes) {
  is_number = ParseNumber(bytes, &number);
}

LabelMap::Texts LabelMap::MakeTexts(const std::vector<std::string>& texts) {
  Texts made;
  for (const std::string& text : texts) made.emplace_back(text);
  return made;
}

LabelMap::LabelMap(std::vector<std::string> positive, std::vector<std::string> negative,
                   std::vector<std::string> others, std::vector<std::string> missing)
    : positive_(MakeTexts(positive)),
      others_(MakeTexts(others)),
      missing_(MakeTexts(missing)),
      negative_(MakeTexts(negative)),
      learns_(negative.empty()) {}

bool LabelMap::ContainsBytes(const Texts& texts, absl::string_view text) {
  return std::any_of(texts.begin(), texts.end(), [&](const Text& t) { return t.text == text; });
}

bool LabelMap::Contains(const Texts& texts, const Text& text) {
  return std::any_of(texts.begin(), texts.end(), [&](const Text& t) {
    return t.text == text.text || (t.is_number && text.is_number && t.number == text.number);
  });
}

bool LabelMap::Read(absl::string_view text, float* label) {
  *label = ContainsBytes(positive_, text) ? 1.0f : 0.0f;
  if (*label == 1 || ContainsBytes(negative_, text)) return true;
  const Text other(text);
  *label = Contains(positive_, other) ? 1.0f : 0.0f;
  if (*label == 1 || Contains(negative_, other)) return true;
  if (!Learns() || IsMissing(other) || IsSoft(other)) return false;
  if (!others_.empty() && !Contains(others_, other)) return false;
  negative_.push_back(other);
  return true;
}

bool LabelMap::IsSoft(const Text& text) {
  return text.is_number && text.number > 0 && text.number < 1;
}

bool LabelMap::IsMissing(const Text& text) const {
  return Contains(missing_, text) || IsUsuallyMissing(Trimmed(text.text));
}

bool LabelMap::IsMissing(absl::string_view text) const {
  const Text as_text(text);
  return !Contains(positive_, as_text) && !Contains(negative_, as_text) && IsMissing(as_text);
}

std::string LabelMap::Hint(absl::string_view text) const {
  if (IsMissing(Text(text))) {
    return "a label is never missing: take such rows out of the file, or name the text in "
           "data.columns.negative if it is a label";
  }
  if (IsSoft(Text(text))) {
    return "there are two classes, and no labels between them: write such a row several times, "
           "with the labels 0 and 1 in that proportion, or name it in data.columns.negative";
  }
  return "data.columns.positive lists the labels that count as 1, data.columns.negative those that "
         "count as 0";
}

std::string LabelMap::Expected() const {
  const auto shown = [](const Texts& texts) {
    return absl::StrJoin(texts, " or ", [](std::string* out, const Text& text) {
      absl::StrAppend(out, Quote(text.text));
    });
  };
  const Texts& rest = negative_.empty() ? others_ : negative_;
  return absl::StrCat(shown(positive_), " (which counts as 1)",
                      rest.empty() ? "" : absl::StrCat(", or ", shown(rest), " (0)"));
}

}  // namespace tandem::data
