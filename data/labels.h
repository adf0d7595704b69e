// Which texts of a label count as 1 and which as 0.
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
  // `others`: if `negative` is empty, the first of these texts that is met counts as 0 from then on,
  // and no second one may come. If both are empty, that holds for the first text that is not
  // positive and may be a label. Texts in `missing`, and those that usually stand for a missing value
  // ("", "nan", "NA", "null", ...), are labels only if `positive` or `negative` lists them. So are
  // numbers between 0 and 1.
  LabelMap(std::vector<std::string> positive, std::vector<std::string> negative,
           std::vector<std::string> others = {}, std::vector<std::string> missing = {});

  // False if the text is no label. Texts are the same if their bytes are, or if both are the same
  // number: "1", "1.0" and "+1".
  bool Read(absl::string_view text, float* label);

  // The text that counts as 0 because it was the first other one; "" if none was, or need be.
  std::string Learned() const { return learns_ && !negative_.empty() ? negative_[0].text : ""; }

  // "'yes' (which counts as 1), or 'no' or 'never' (0)": what is known by now, for messages.
  std::string Expected() const;

  // Whether the text stands for a missing label; one that `positive` or `negative` lists does not.
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
  // Among the texts as bytes alone, which is what nearly every label is.
  static bool ContainsBytes(const Texts& texts, absl::string_view text);
  bool IsMissing(const Text& text) const;
  static bool IsSoft(const Text& text);  // a share of both

  const Texts positive_, others_, missing_;
  Texts negative_;  // the first other one, once it has been met
  const bool learns_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_LABELS_H_
