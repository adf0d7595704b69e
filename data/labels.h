// LabelMap decides which texts of a label count as 1 and which as 0.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_LABELS_H_
#define TANDEM_DATA_LABELS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::data {

class LabelMap {
 public:
  // `others`: if `negative` is empty, the first of these texts in the data counts as 0 from then
  // on, and no second one may follow. If `negative` and `others` are both empty, the first text
  // that is not positive and may be a label takes that role. Texts in `missing`, and those that
  // usually stand for a missing value ("", "nan", "NA", "null", ...), are labels only if `positive`
  // or `negative` lists them. The same holds for numbers between 0 and 1.
  LabelMap(std::vector<std::string> positive, std::vector<std::string> negative,
           std::vector<std::string> others = {}, std::vector<std::string> missing = {});

  // Reads a label; false if the text is no label. Two texts are the same if their bytes are equal,
  // or if both are the same number: "1", "1.0" and "+1".
  bool Read(absl::string_view text, float* label);

  // The text that counts as 0 because it was the first that does not count as 1; "" if there was
  // none so far, or `negative` was given.
  std::string Learned() const { return learns_ && !negative_.empty() ? negative_[0].text : ""; }

  // Whether the next text that is neither positive nor missing will count as 0.
  bool Learns() const { return learns_ && negative_.empty(); }

  // The labels that are known so far, for messages: "'yes' (which counts as 1), or 'no' or 'never'
  // (0)".
  std::string Expected() const;

  // Whether the text stands for a missing label. False for texts that `positive` or `negative`
  // lists.
  bool IsMissing(absl::string_view text) const;

  // The hint for a text that Read has refused.
  std::string Hint(absl::string_view text) const;

 private:
  struct Text {
    explicit Text(absl::string_view bytes);
    std::string text;
    bool is_number = false;
    double number = 0;
  };
  using Texts = std::vector<Text>;
  static Texts MakeTexts(const std::vector<std::string>& texts);
  static bool Contains(const Texts& texts, const Text& text);
  // Compares bytes only, which is enough for nearly every label and fast.
  static bool ContainsBytes(const Texts& texts, absl::string_view text);
  bool IsMissing(const Text& text) const;
  static bool IsSoft(const Text& text);  // a number between 0 and 1

  const Texts positive_, others_, missing_;
  Texts negative_;  // if learned: the first text that does not count as 1
  const bool learns_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_LABELS_H_
