#include "data/id_check.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "data/batch_source.h"
#include "data/cells.h"
#include "data/row_data.h"
#include "data/row_source.h"

namespace tandem::data {
namespace {

constexpr int64_t kSampledIds = 400'000;  // in all fields together
constexpr int64_t kSampledRows = 10'000;
constexpr int64_t kRowsWithForms = 100'000;  // training rows: making forms takes time
constexpr double kRespelled = 0.2;  // warn if so large a share of values is spelled otherwise
constexpr double kUntrained = 0.9;  // warn if so large a share of values is in no training row,
constexpr int64_t kFewestIds = 10;  // and if there are at least so many values
constexpr size_t kShownBytes = 60;

constexpr uint32_t kFirstLetter = 0xc0;
// For each letter from U+00C0 to U+017F, most of which have an accent, the letter without accent.
constexpr absl::string_view kLetters =
    "aaaaaaaceeeeiiiidnooooo*ouuuuyts"
    "aaaaaaaceeeeiiiidnooooo/ouuuuyty"
    "aaaaaaccccccccddddeeeeeeeeeegggggggghhhhiiiiiiiiiiiijjkkkllllllllll"
    "nnnnnnnnnoooooooorrrrrrssssssssttttttuuuuuuuuuuuuwwyyyzzzzzzs";
static_assert(kLetters.size() == 0x180 - kFirstLetter);

// The text with a space in the place of each other blank, such as a no-break space, and without
// marks that cannot be seen.
std::string WithPlainBlanks(absl::string_view text) {
  std::string out;
  while (!text.empty()) {
    const absl::string_view character = text.substr(0, CharacterAt(text));
    text.remove_prefix(character.size());
    const Mark mark = MarkOf(character);
    if (mark == Mark::kBlank || character == "\t") out += ' ';
    if (mark == Mark::kVisible && character != "\t") absl::StrAppend(&out, character);
  }
  return out;
}

absl::string_view Unwrapped(absl::string_view text) {
  for (size_t before = text.size() + 1; text.size() < before;) {
    before = text.size();
    text = absl::StripAsciiWhitespace(text);
    const bool quoted = text.size() >= 2 && text.front() == text.back() &&
                        (text.front() == '"' || text.front() == '\'');
    if (quoted) text = text.substr(1, text.size() - 2);
  }
  return text;
}

// The two-byte character that `text` begins with; 0 if it begins with another character.
uint32_t TwoByteCharacter(absl::string_view text) {
  if (text.size() < 2 || (text[0] & 0xe0) != 0xc0) return 0;
  return uint32_t{text[0] & 0x1fu} << 6 | uint32_t{text[1] & 0x3fu};
}

// A hint that explains how two spellings of one id differ.
absl::string_view HintFor(absl::string_view text, absl::string_view trained) {
  double a = 0, b = 0;
  if (Trimmed(text) == Trimmed(trained)) return "data.columns.trim: true takes blanks off";
  if (ParseNumber(text, &a) && ParseNumber(trained, &b)) {
    return "ids are texts: write whole numbers alike in all files (a column of pandas that became "
           "float?)";
  }
  if (WithPlainBlanks(text) == WithPlainBlanks(trained)) {
    return "one of them has a no-break space, or another mark that looks like a blank or like "
           "nothing: write ids alike in all files";
  }
  if (absl::EqualsIgnoreCase(text, trained)) return "capital letters count: write ids alike";
  return "ids are compared byte by byte: write them alike in all files, also quotes and accents";
}

}  // namespace

std::string PlainForm(absl::string_view text) {
  const std::string plain = WithPlainBlanks(text);
  text = Unwrapped(plain);
  constexpr double kExact = 9e15;
  double number = 0;
  if (ParseNumber(text, &number) && std::floor(number) == number && std::fabs(number) < kExact) {
    return absl::StrCat(static_cast<int64_t>(number));
  }
  std::string form;
  while (!text.empty()) {
    const uint32_t character = TwoByteCharacter(text);
    const bool accent = character >= 0x300 && character < 0x370;  // accent of the letter before it
    const bool letter = character >= kFirstLetter && character < 0x180;
    if (letter) form += kLetters[character - kFirstLetter];
    const bool again = text[0] == ' ' && absl::EndsWith(form, " ");  // a second blank
    if (!letter && !accent && !again) {
      form += absl::ascii_tolower(static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(letter || accent ? 2 : 1);
  }
  return form;
}

IdCheck::IdCheck(std::string part, std::vector<std::string> fields, bool by_model)
    : part_(std::move(part)), by_model_(by_model) {
  for (std::string& name : fields) {
    Field& field = fields_.emplace_back();
    field.missing = FieldHash(name).missing();
    field.name = std::move(name);
  }
}

void IdCheck::Sample(const std::vector<std::string>& files, RowParser* parser) {
  const auto fields = static_cast<int64_t>(std::max<size_t>(1, fields_.size()));
  const int64_t most = std::min(kSampledRows, kSampledIds / fields) /
                           static_cast<int64_t>(std::max<size_t>(1, files.size())) +
                       1;
  Row row;
  for (const std::string& name : files) {
    const auto file = parser->Open(name);
    if (!file.ok()) return;
    for (int64_t rows = 0; rows < most; ++rows) {
      absl::string_view line;
      const absl::StatusOr<bool> more = (*file)->Next(&line);
      if (!more.ok() || !*more) break;
      if ((*file)->Parse(line, &row).ok()) Add(row, parser->texts());
    }
  }
}

void IdCheck::Add(const Row& row, absl::Span<const absl::string_view> texts) {
  for (size_t f = 0; f < fields_.size(); ++f) {
    Field& field = fields_[f];
    for (size_t i = row.begin(f); i < row.end(f); ++i) {
      if (row.keys[i] == field.missing) continue;
      ++field.count;
      Id& id = field.ids[row.keys[i]];
      if (++id.count > 1 || texts.empty()) continue;
      id.text = std::string(texts[i].substr(0, kShownBytes));
      id.form = FieldHash("").Key(PlainForm(texts[i]));
      field.forms[id.form];
    }
  }
}

bool IdCheck::Field::IsTrained() const {
  return count == 0 ||
         static_cast<double>(count - trained) < kRespelled * static_cast<double>(count);
}

bool IdCheck::LacksIds() const {
  return !std::all_of(fields_.begin(), fields_.end(),
                      [](const Field& field) { return field.IsTrained(); });
}

void IdCheck::SeeTraining(const Row& row, absl::Span<const absl::string_view> texts) {
  ++training_rows_;
  for (size_t f = 0; f < fields_.size(); ++f) {
    Field& field = fields_[f];
    if (field.IsTrained()) continue;
    for (size_t i = row.begin(f); i < row.end(f); ++i) {
      SeeId(row.keys[i], texts.empty() ? absl::string_view() : texts[i], &field);
    }
  }
}

void IdCheck::SeeModel(absl::Span<const uint64_t> keys) {
  for (Field& field : fields_) {
    for (size_t i = 0; i < keys.size() && !field.IsTrained(); ++i) {
      SeeId(keys[i], {}, &field);
    }
  }
}

void IdCheck::SeeId(uint64_t key, absl::string_view text, Field* field) {
  const auto id = field->ids.find(key);
  if (id == field->ids.end()) {
    if (text.empty() || training_rows_ > kRowsWithForms) return;
    const auto form = field->forms.find(FieldHash("").Key(PlainForm(text)));
    if (form == field->forms.end() || !form->second.empty()) return;
    form->second = std::string(text.substr(0, kShownBytes));
  } else if (!id->second.trained) {
    id->second.trained = true;
    field->trained += id->second.count;
  }
}

void IdCheck::Warn(bool all, std::vector<std::string>* warnings) const {
  for (const Field& field : fields_) {
    if (!field.IsTrained()) WarnOf(field, all, warnings);
  }
}

void IdCheck::WarnOf(const Field& field, bool all, std::vector<std::string>* warnings) const {
  const Id* example = nullptr;         // the most frequent untrained id, respelled ones first,
  const std::string* other = nullptr;  // and its spelling in the training rows
  int64_t respelled = 0;
  for (const auto& [key, id] : field.ids) {
    if (id.trained) continue;
    const auto form = field.forms.find(id.form);
    const bool found = !id.text.empty() && form != field.forms.end() && !form->second.empty();
    if (found) respelled += id.count;
    const auto rank = [](bool is_respelled, const Id& of) {
      return std::make_tuple(is_respelled, of.count, of.text);
    };
    if (example != nullptr && rank(found, id) <= rank(other != nullptr, *example)) continue;
    example = &id;
    other = found ? &form->second : nullptr;
  }
  if (example == nullptr) return;
  const auto count = static_cast<double>(field.count);
  const int64_t untrained = field.count - field.trained;
  const double least = all ? kUntrained * count : count;
  const bool is_respelled = static_cast<double>(respelled) >= kRespelled * count;
  const bool is_unknown = field.count >= kFewestIds && static_cast<double>(untrained) >= least;
  if (!is_respelled && !is_unknown) return;
  const std::string lack = by_model_
                               ? "have no row in the model"
                               : absl::StrCat("are in none of the ", training_rows_,
                                              " training rows", all ? "" : " that were looked at");
  warnings->push_back(absl::StrCat(
      part_, ": column ", Quote(field.name), ": ", untrained * 100 / field.count, " % of its ",
      field.count, " values that were looked at ", lack,
      example->text.empty() ? "" : absl::StrCat(", such as ", Quote(example->text)),
      other == nullptr ? "" : absl::StrCat(", which is ", Quote(*other), " there"), "; hint: ",
      other == nullptr ? "are ids written alike in all files? The rows of others are never trained"
                       : HintFor(example->text, *other)));
}

absl::StatusOr<IdCheck> SampleIdsToScore(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  if (data.format() == Data::NCF || data.format() == Data::PROGRAM) {
    return IdCheck("", {}, /*by_model=*/true);
  }
  TANDEM_ASSIGN_OR_RETURN(const DataShape shape, FindDataShape(plan));
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(plan, parser.get()));
  IdCheck ids("data.test", shape.fields, /*by_model=*/true);
  ids.Sample(parts.test.files, parser.get());
  return ids;
}

}  // namespace tandem::data
