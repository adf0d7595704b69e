// The parser of the libsvm / svmlight text format: sparse vectors with a label.
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/labels.h"
#include "data/row.h"

namespace tandem::data {
namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// Cuts the next blank-separated word off the front of `rest`; empty at the end.
absl::string_view NextWord(absl::string_view* rest) {
  size_t begin = 0;
  while (begin < rest->size() && IsBlank((*rest)[begin])) ++begin;
  size_t end = begin;
  while (end < rest->size() && !IsBlank((*rest)[end])) ++end;
  const absl::string_view word = rest->substr(begin, end - begin);
  rest->remove_prefix(end);
  return word;
}

LabelMap LibsvmLabels(const Columns& columns) {
  if (columns.positive().empty()) {
    return LabelMap({"1", "True", "true"}, {}, {"0", "-1", "False", "false"});
  }
  return LabelMap({columns.positive().begin(), columns.positive().end()},
                  {columns.negative().begin(), columns.negative().end()});
}

class LibsvmParser final : public RowParser {
 public:
  LibsvmParser(int max_ids, const Columns& columns, bool labels_optional)
      : max_ids_(max_ids), labels_optional_(labels_optional), labels_(LibsvmLabels(columns)) {}

  std::string LearnedNegative() const override { return labels_.Learned(); }
  bool Learns() const override { return labels_.Learns(); }
  void LearnNegative(absl::string_view label) override {
    float ignored = 0;
    if (!label.empty()) labels_.Read(label, &ignored);
  }

  bool IsRow(absl::string_view line) const override {
    const size_t first = line.find_first_not_of(" \t");
    return first != absl::string_view::npos && line[first] != '#';
  }

  absl::Status Parse(absl::string_view line, Row* row) override {
    row->numbers.clear();
    row->keys.clear();
    row->weights.clear();
    absl::string_view rest = line.substr(0, line.find('#'));
    absl::string_view features = rest;
    const absl::string_view label = NextWord(&rest);
    if (labels_optional_ && label.find(':') != absl::string_view::npos) {
      row->label = kNoLabel;
    } else {
      TANDEM_RETURN_IF_ERROR(ParseLabel(label, row));
      features = rest;
    }
    absl::string_view word = NextWord(&features);
    if (IsQuery(word)) word = NextWord(&features);
    for (; !word.empty(); word = NextWord(&features)) {
      TANDEM_RETURN_IF_ERROR(ParsePair(word, row));
    }
    row->offsets = {0, static_cast<uint32_t>(row->keys.size())};
    if (max_ids_ > 0 && row->keys.size() > static_cast<size_t>(max_ids_)) {
      return absl::InvalidArgumentError(absl::StrCat("the row has ", row->keys.size(),
                                                     " ids, expected at most ", max_ids_,
                                                     "; hint: raise data.max_ids"));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ParseLabel(absl::string_view word, Row* row) {
    if (labels_.Read(word, &row->label)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "the label is ", Quote(word), ", expected ", labels_.Expected(),
        "; hint: each of the two classes is written in one way; ", labels_.Hint(word)));
  }

  // Whether the word is "qid:7", which groups rows for ranking. The word is skipped, since rows are
  // scored one by one here.
  static bool IsQuery(absl::string_view word) {
    uint64_t ignored = 0;
    return absl::ConsumePrefix(&word, "qid:") && ParseUnsigned(word, &ignored);
  }

  static absl::Status ParsePair(absl::string_view word, Row* row) {
    const size_t colon = word.find(':');
    uint64_t index = 0;
    float value = 0;
    if (colon == absl::string_view::npos || !ParseUnsigned(word.substr(0, colon), &index) ||
        !ParseNumber(word.substr(colon + 1), &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quote(word),
                       " is not index:value, expected a whole number below 2^64, a "
                       "colon and a number; hint: ",
                       PairHint(word, colon)));
    }
    row->keys.push_back(index);
    row->weights.push_back(value);
    return absl::OkStatus();
  }

  static absl::string_view PairHint(absl::string_view word, size_t colon) {
    if (colon == absl::string_view::npos) return "pairs are separated by blanks";
    const absl::string_view value = word.substr(colon + 1);
    if (IsBeyondFloat(value)) return "scale values to the range of a float, 3.4e38, in the file";
    if (absl::StrContains(value, ',')) return "pairs are separated by blanks, not by commas";
    if (absl::StrContains(value, ':')) return "leave the fields of field:index:value out";
    if (absl::StartsWith(word, "qid:")) return "a query is a whole number, right after the label";
    return "pairs are separated by blanks";
  }

  const int max_ids_;
  const bool labels_optional_;
  LabelMap labels_;
};

}  // namespace

std::unique_ptr<RowParser> NewLibsvmParser(int max_ids, const Columns& columns,
                                           bool labels_optional) {
  return std::make_unique<LibsvmParser>(max_ids, columns, labels_optional);
}

}  // namespace tandem::data
