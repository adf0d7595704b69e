// The text of a job: parsing, `--set`, and messages that name the file, the line and the likely
// intention.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"
#include "job/job.h"
#include "job/message_text.h"
#include "job/refuse.h"
#include "job/timing_plan.h"

namespace tandem::job {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
using google::protobuf::io::Tokenizer;

constexpr size_t kMaxJobBytes = 1 << 20;

// A `--set` as the user gave it. Control characters are replaced, so that the message stays on one
// line.
std::string SetFlag(absl::string_view path, absl::string_view value) {
  std::string text = absl::StrCat("--set ", path, "=", value);
  for (char& c : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = '?';
  }
  return text;
}

// ------------------------------------------------------------------------------- "did you mean"

// How many insertions, deletions, replacements and swaps of neighbours turn `a` into `b` (Damerau
// 1964, in the restricted form: a swapped pair is not changed again).
size_t EditDistance(absl::string_view a, absl::string_view b) {
  // Rows i - 2, i - 1 and i of the distance table, for prefixes of `a`.
  std::vector<size_t> before, above, row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

// The distance for "did you mean". Upper and lower case count as equal. If one word begins with the
// other, the distance is at most 1.
size_t Distance(absl::string_view word, absl::string_view candidate) {
  constexpr size_t kMinBeginning = 3;
  const std::string a = absl::AsciiStrToLower(word), b = absl::AsciiStrToLower(candidate);
  const size_t distance = EditDistance(a, b);
  const bool begins = absl::StartsWith(b, a) || absl::StartsWith(a, b);
  return begins && std::min(a.size(), b.size()) >= kMinBeginning ? std::min<size_t>(distance, 1)
                                                                 : distance;
}

}  // namespace

absl::optional<std::string> Nearest(absl::string_view word,
                                    const std::vector<std::string>& candidates) {
  // Do not guess for one letter, which is near any other, or for more letters than any field name
  // has.
  if (word.size() < 2 || word.size() > 64) return absl::nullopt;
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  absl::optional<std::string> nearest;
  for (const std::string& candidate : candidates) {
    const size_t distance = Distance(word, candidate);
    if (distance >= best) continue;
    best = distance;
    nearest = candidate;
  }
  return nearest;
}

namespace {

std::vector<std::string> FieldNames(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return names;
}

// The path of a field called `name` somewhere in a job; empty if there is none.
std::string PathOfField(const Descriptor& message, const std::string& name) {
  if (message.FindFieldByName(name) != nullptr) return name;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    if (field.message_type() == nullptr) continue;
    const std::string inner = PathOfField(*field.message_type(), name);
    if (inner.empty()) continue;
    return absl::StrCat(field.name(), field.is_repeated() ? "[0]." : ".", inner);
  }
  return "";
}

// A name of version 0.1 and what it is called now. Kept for one release.
struct Renamed {
  absl::string_view message, was, now;
};
constexpr Renamed kRenamedFields[] = {
    {"Job", "save", "checkpoint"},
    {"Job", "service_time", "fault_injection.slow_workers"},
    {"Data", "skip_bad_rows", "max_bad_rows"},
    {"Table", "synchroniser", "placement"},
    {"Table", "state_floats", "extra_floats"},
    {"Dense", "wire", "wire_dtype"},
    {"Dense", "rules", "algorithm_rules"},
    {"LocalSteps", "every", "sync_every"},
    {"LocalSteps", "from_step", "warmup_steps"},
    {"Codec", "without_feedback", "error_feedback (true if not set; false is without)"},
    {"Train", "batch", "batch_size"},
    {"Train", "depth", "prefetch_steps"},
    {"Train", "max_unacknowledged", "max_inflight_pushes"},
    {"Evaluation", "batch", "batch_size"},
    {"Staleness", "record", "record_updates"},
    {"Staleness", "order", "record_order"},
    {"Limits", "report_seconds", "report_interval_seconds"},
    {"Limits", "stall_limit_seconds", "stall_timeout_seconds"},
    {"Limits", "start_seconds", "startup_timeout_seconds"},
};

// The message for an unknown field. `root`: the message that is searched for a field of that name
// elsewhere.
std::string NoSuchField(const Descriptor& root, const Descriptor& message,
                        const std::string& name) {
  const std::vector<std::string> names = FieldNames(message);
  std::string text =
      absl::StrCat("no field named ", Quoted(name), " in ", message.full_name(), "; ");
  for (const Renamed& field : kRenamedFields) {
    if (message.name() == field.message && name == field.was) {
      return absl::StrCat(text, "renamed to ", field.now);
    }
  }
  if (const auto nearest = Nearest(name, names)) {
    return absl::StrCat(text, "did you mean ", Quoted(*nearest), "?");
  }
  const std::string elsewhere = PathOfField(root, name);
  if (!elsewhere.empty()) return absl::StrCat(text, "it is found at ", elsewhere);
  if (names.empty()) return absl::StrCat(text, "it has no fields");
  return absl::StrCat(text, "its fields are ", absl::StrJoin(names, ", "));
}

std::string NoSuchValue(const FieldDescriptor& field, const std::string& name) {
  if (field.full_name() == Policy::descriptor()->FindFieldByName("kind")->full_name() &&
      name == "STORE") {
    return "no policy STORE; renamed to table { kind: KEY_VALUE }, without a policy";
  }
  const std::vector<std::string> names = ValueNames(*field.enum_type());
  std::string text = absl::StrCat(Quoted(name), " is not a value of ", field.name(),
                                  "; one of " + absl::StrJoin(names, ", "));
  if (const auto nearest = Nearest(name, names)) {
    absl::StrAppend(&text, "; did you mean ", *nearest, "?");
  }
  return text;
}

// ---- errors of the parser ----

// Keeps the first error of the parser. Later errors are usually consequences of it.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (!message_.empty()) return;
    line_ = std::max(line, 0);
    column_ = std::max(column, 0);
    message_ = message;
  }
  int line() const { return line_; }      // from 0
  int column() const { return column_; }  // from 0; a tab goes to the next multiple of 8
  const std::string& message() const { return message_; }

 private:
  int line_ = 0;
  int column_ = 0;
  std::string message_;
};

// The byte offset of a line and column of the tokenizer.
size_t OffsetOf(absl::string_view text, int line, int column) {
  size_t at = 0;
  for (; line > 0 && at < text.size(); ++at) line -= text[at] == '\n' ? 1 : 0;
  for (int c = 0; c < column && at < text.size() && text[at] != '\n'; ++at) {
    c = text[at] == '\t' ? (c / 8 + 1) * 8 : c + 1;
  }
  return at;
}

// "12:5": line and column from 1, where columns count bytes.
std::string LineAndColumn(absl::string_view text, size_t offset) {
  const absl::string_view before = text.substr(0, offset);
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 = 0
  const auto lines = std::count(before.begin(), before.end(), '\n');
  return absl::StrCat(lines + 1, ":", offset - line_start + 1);
}

// An open brace. `message` is null if the words before the brace name no field.
struct OpenBrace {
  const Descriptor* message = nullptr;
  int line = 0;  // from 1; 0: the whole text
};

// The braces that enclose the offset `end`, the whole text first. The function finds them by
// walking the tokens.
std::vector<OpenBrace> BracesAround(const Descriptor* root, absl::string_view text, size_t end) {
  google::protobuf::io::ArrayInputStream stream(text.data(), static_cast<int>(end));
  FirstError ignored;
  Tokenizer tokenizer(&stream, &ignored);
  tokenizer.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
  std::vector<OpenBrace> stack = {{root, 0}};
  std::string last;
  while (tokenizer.Next()) {
    const Tokenizer::Token& token = tokenizer.current();
    if (token.type == Tokenizer::TYPE_IDENTIFIER) last = token.text;
    if (token.text == "{" || token.text == "<") {
      const Descriptor* const outer = stack.back().message;
      const FieldDescriptor* field = outer == nullptr ? nullptr : outer->FindFieldByName(last);
      stack.push_back({field == nullptr ? nullptr : field->message_type(), token.line + 1});
    }
    if ((token.text == "}" || token.text == ">") && stack.size() > 1) stack.pop_back();
  }
  return stack;
}

constexpr char kProtobufText[] = "; a job or study is protobuf text, as in cluster { workers: 2 }";

// Rewords syntax errors of Protocol Buffers for users who know other formats, such as JSON.
std::string ExplainSyntax(const Descriptor* root, absl::string_view text, size_t offset,
                          absl::string_view message) {
  const absl::string_view rest = text.substr(std::min(offset, text.size()));
  const absl::string_view first = absl::StripLeadingAsciiWhitespace(text);
  const std::string what(absl::StripSuffix(message, "."));
  if (absl::StartsWith(message, "Interpreting non ascii")) {
    for (const char* quote :
         {"\u201c", "\u201d", "\u201e", "\u2018", "\u2019", "\u00ab", "\u00bb"}) {
      if (absl::StartsWith(rest, quote)) {
        return absl::StrCat("typographic quotes (", quote, ") around a text; write it in \"...\"");
      }
    }
    if (absl::StartsWith(rest, "\u00a0")) {
      return "a no-break space, as some programs insert it; write a plain one";
    }
    return "a character that is no plain letter; a text stands in \"...\"";
  }
  if (absl::StartsWith(first, "{") || absl::StartsWith(first, "[")) {
    return absl::StrCat("this looks like JSON", kProtobufText);
  }
  const bool end = absl::StripAsciiWhitespace(rest).empty();
  const std::vector<OpenBrace> open = BracesAround(root, text, std::min(offset, text.size()));
  if (end && open.size() > 1) {
    return absl::StrCat("the text ends, but the { of line ", open.back().line,
                        " is open; is its } missing?");
  }
  if (absl::StartsWith(rest, "}") && open.size() == 1) return "there is no { that this } closes";
  if (absl::StartsWith(message, "Expected \"{\"")) {
    return absl::StrCat(what, ", since the field is made of fields", kProtobufText);
  }
  if (absl::StartsWith(message, "Expected integer or identifier, got: \"")) {
    return absl::StrCat(what, "; hint: names stand without quotes");
  }
  if (offset < text.size() && text.size() - first.size() == offset) {
    return absl::StrCat(what, kProtobufText);
  }
  return what;
}

// The n-th (from 0) part of the message that stands between double quotes.
std::string QuotedPart(absl::string_view message, size_t n) {
  const std::vector<absl::string_view> parts = absl::StrSplit(message, '"');
  return 2 * n + 1 < parts.size() ? std::string(parts[2 * n + 1]) : "";
}

// The message of Protocol Buffers, or a better one, and the offset in `text` that it is about.
std::pair<std::string, size_t> Explain(const Descriptor* root, absl::string_view text,
                                       const FirstError& error) {
  size_t offset = OffsetOf(text, error.line(), error.column());
  const std::string& message = error.message();
  const bool field = absl::StrContains(message, "has no field named");
  const bool value = absl::StartsWith(message, "Unknown enumeration value");
  if (!field && !value) return {ExplainSyntax(root, text, offset, message), offset};
  // The parser has already read past the word that it complains about. Point at the word itself.
  const std::string word = QuotedPart(message, field ? 1 : 0);
  const size_t found = text.substr(0, std::min(text.size(), offset + word.size())).rfind(word);
  if (found != absl::string_view::npos) offset = found;
  const std::vector<OpenBrace> around = BracesAround(root, text, offset);
  const Descriptor* const enclosing = around.back().message;
  if (enclosing == nullptr) return {message, offset};
  if (field) {
    std::string what = NoSuchField(*root, *enclosing, word);
    const bool outside = std::any_of(around.begin(), around.end() - 1, [&](const OpenBrace& outer) {
      return outer.message != nullptr && outer.message->FindFieldByName(word) != nullptr;
    });
    if (outside) {
      absl::StrAppend(&what, "; or is a } missing, for the { of line ", around.back().line, "?");
    }
    return {what, offset};
  }
  const FieldDescriptor* descriptor = enclosing->FindFieldByName(QuotedPart(message, 1));
  if (descriptor == nullptr || descriptor->enum_type() == nullptr) return {message, offset};
  return {NoSuchValue(*descriptor, word), offset};
}

// ------------------------------------------------------------------------------- --set path=value

struct PathStep {
  std::string name;
  int index = -1;  // -1: none given
};

// Splits "table[0].dim" into (table, 0) and (dim).
absl::StatusOr<std::vector<PathStep>> SplitPath(absl::string_view path) {
  std::vector<PathStep> steps;
  for (absl::string_view part : absl::StrSplit(path, '.')) {
    PathStep step;
    const size_t bracket = part.find('[');
    step.name = std::string(part.substr(0, bracket));
    if (bracket != absl::string_view::npos) {
      absl::string_view index = part.substr(bracket + 1);
      if (!absl::ConsumeSuffix(&index, "]") || !absl::SimpleAtoi(index, &step.index) ||
          step.index < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("cannot read ", Quoted(part), "; write an index as in table[0].dim"));
      }
    }
    if (step.name.empty()) {
      return absl::InvalidArgumentError(
          "an empty name in the path; write it as in train.batch_size");
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

// The field that one step of a path names. Checks that there is an index exactly where one is
// needed.
absl::StatusOr<const FieldDescriptor*> FindField(const Message& message, const PathStep& step,
                                                 bool last) {
  const Descriptor& descriptor = *message.GetDescriptor();
  const FieldDescriptor* field = descriptor.FindFieldByName(step.name);
  if (field == nullptr) {
    return absl::InvalidArgumentError(NoSuchField(*Job::descriptor(), descriptor, step.name));
  }
  if (!last && field->message_type() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(step.name, " is a value, it has no fields"));
  }
  if (!field->is_repeated()) {
    if (step.index < 0) return field;
    return absl::InvalidArgumentError(absl::StrCat(step.name, " is not a list; drop the index"));
  }
  const int size = message.GetReflection()->FieldSize(message, field);
  if (step.index >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat(step.name, "[", step.index, "]: the list has ", size, " entries, from 0"));
  }
  if (step.index < 0 && !last) {
    return absl::InvalidArgumentError(
        absl::StrCat("which ", step.name, "? write ", step.name, "[0]"));
  }
  return field;
}

// Refuses text that looks like a list but is given to a single string. The user most likely meant a
// list.
absl::Status CheckPlainText(const FieldDescriptor& field, const std::string& value) {
  const bool list = !value.empty() && value[0] == '[';
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_STRING || field.is_repeated() || !list) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      field.name(),
      " is one text, not a list; write it in double quotes if it begins with a bracket"));
}

// The value as protobuf text. A string may go without quotes, since shells remove them.
std::string ValueText(const FieldDescriptor& field, const std::string& value) {
  const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const bool quoted = !value.empty() && (value[0] == '"' || value[0] == '\'');
  const bool list = field.is_repeated() && !value.empty() && value[0] == '[';
  if (text && !quoted && !list) return absl::StrCat("\"", absl::CEscape(value), "\"");
  return value;
}

// Sets one field of `message`: the whole field, or entry `index` of a list.
absl::Status SetField(const FieldDescriptor* field, int index, const std::string& value,
                      Message* message) {
  TANDEM_RETURN_IF_ERROR(CheckPlainText(*field, value));
  // Parse the value into an empty message of the same type, so that it cannot change other fields.
  const std::unique_ptr<Message> fresh(message->New());
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  const std::string text = absl::StrCat(field->name(), ": ", ValueText(*field, value));
  FirstError error;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, fresh.get())) {
    return absl::InvalidArgumentError(Explain(message->GetDescriptor(), text, error).first);
  }
  std::vector<const FieldDescriptor*> set;
  reflection.ListFields(*fresh, &set);
  for (const FieldDescriptor* other : set) {
    if (other != field) {
      return absl::InvalidArgumentError(absl::StrCat("the value also sets ", other->name()));
    }
  }
  if (index < 0) {
    reflection.ClearField(message, field);
    message->MergeFrom(*fresh);
    return absl::OkStatus();
  }
  if (reflection.FieldSize(*fresh, field) != 1) {
    return absl::InvalidArgumentError("an entry of a list takes one value");
  }
  message->MergeFrom(*fresh);  // appends
  reflection.SwapElements(message, field, index, reflection.FieldSize(*message, field) - 1);
  reflection.RemoveLast(message, field);
  return absl::OkStatus();
}

// The error for a plain value that is given to a message field (`--set policy=ASP`). The message
// names the inner field that was probably meant (`policy.kind=ASP`).
std::string MadeOfFields(const FieldDescriptor& field, const std::string& path,
                         const std::string& value) {
  const Descriptor& message = *field.message_type();
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& inner = *message.field(i);
    if (inner.enum_type() == nullptr) continue;
    if (const auto nearest = Nearest(value, ValueNames(*inner.enum_type()))) {
      return absl::StrCat(field.name(), " is made of fields; did you mean ", path, ".",
                          inner.name(), "=", *nearest, "?");
    }
  }
  const std::vector<std::string> names = FieldNames(message);
  return absl::StrCat(field.name(), " is made of fields (", absl::StrJoin(names, ", "),
                      "); write one of them, as in ", path, ".", names.empty() ? "x" : names[0],
                      "=...");
}

absl::Status ApplyOverride(const std::string& path, const std::string& value, Message* message) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<PathStep> steps, SplitPath(path));
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    TANDEM_ASSIGN_OR_RETURN(const FieldDescriptor* field, FindField(*message, steps[i], last));
    const absl::string_view text = absl::StripLeadingAsciiWhitespace(value);
    const bool plain =
        !text.empty() && absl::string_view("{<[").find(text[0]) == absl::string_view::npos;
    if (last && plain && field->message_type() != nullptr &&
        (!field->is_repeated() || steps[i].index >= 0)) {
      return absl::InvalidArgumentError(MadeOfFields(*field, path, value));
    }
    if (last) return SetField(field, steps[i].index, value, message);
    const google::protobuf::Reflection& reflection = *message->GetReflection();
    message = field->is_repeated()
                  ? reflection.MutableRepeatedMessage(message, field, steps[i].index)
                  : reflection.MutableMessage(message, field);
  }
  return absl::OkStatus();
}

// ---- where in the text a refused field is ----

// The offset of the field `path` in the text, or of the nearest field around it that the text has;
// nullopt if there is none.
absl::optional<size_t> PlaceOf(absl::string_view path, absl::string_view text,
                               const Descriptor* descriptor, TextFormat::ParseInfoTree* tree) {
  absl::optional<size_t> place;
  const absl::StatusOr<std::vector<PathStep>> steps = SplitPath(path);
  if (!steps.ok()) return absl::nullopt;
  for (const PathStep& step : *steps) {
    const FieldDescriptor* field =
        descriptor == nullptr ? nullptr : descriptor->FindFieldByName(step.name);
    if (field == nullptr || tree == nullptr) break;
    const int index = field->is_repeated() ? std::max(step.index, 0) : -1;
    const TextFormat::ParseLocation location = tree->GetLocation(field, index);
    if (location.line < 0) break;
    place = OffsetOf(text, location.line, location.column);
    descriptor = field->message_type();
    tree = descriptor == nullptr ? nullptr : tree->GetTreeForNested(field, index);
  }
  return place;
}

// True if the paths are equal, or one is a part of the other.
bool Touches(absl::string_view a, absl::string_view b) {
  if (a.size() > b.size()) std::swap(a, b);
  return absl::StartsWith(b, a) &&
         (a.size() == b.size() || b[a.size()] == '.' || b[a.size()] == '[');
}

// Adds to a refusal "path: what is wrong" where the field was set: by which `--set`, or at which
// place in the file.
absl::Status Locate(const absl::Status& refusal, absl::string_view text,
                    absl::string_view file_name, const Overrides& overrides,
                    TextFormat::ParseInfoTree* tree) {
  const std::string message(refusal.message());
  const std::string path = message.substr(0, message.find(": "));
  for (const auto& [set_path, value] : overrides) {
    if (!Touches(set_path, path)) continue;
    return absl::InvalidArgumentError(absl::StrCat(SetFlag(set_path, value), ": ", message));
  }
  const std::string place = PlaceInText(path, text, file_name, Job::descriptor(), tree);
  return absl::InvalidArgumentError(absl::StrCat(place, ": ", message));
}

}  // namespace

absl::Status ParseMessageText(absl::string_view text, absl::string_view file_name, Message* message,
                              TextFormat::ParseInfoTree* tree) {
  FirstError error;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(tree);
  if (parser.ParseFromString(std::string(text), message)) return absl::OkStatus();
  const auto [what, offset] = Explain(message->GetDescriptor(), text, error);
  return absl::InvalidArgumentError(
      absl::StrCat(file_name, ":", LineAndColumn(text, offset), ": ", what));
}

std::string PlaceInText(absl::string_view path, absl::string_view text, absl::string_view file_name,
                        const Descriptor* root, TextFormat::ParseInfoTree* tree) {
  const absl::optional<size_t> place = PlaceOf(path, text, root, tree);
  if (!place.has_value()) return std::string(file_name);
  return absl::StrCat(file_name, ":", LineAndColumn(text, *place));
}

namespace {

using Resolver = absl::StatusOr<ResolvedJob> (*)(const Job& job);

// Parses a job and refuses it if `resolve` does. The overrides are applied before, so that they can
// mend a job file.
absl::StatusOr<Job> ParseJobFor(absl::string_view text, absl::string_view file_name,
                                const Overrides& overrides, Resolver resolve) {
  absl::ConsumePrefix(&text, "\xef\xbb\xbf");  // a byte order mark, as some editors write it
  if (text.size() > kMaxJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": ", text.size(), " bytes, a job has at most ", kMaxJobBytes));
  }
  Job job;
  TextFormat::ParseInfoTree tree;
  TANDEM_RETURN_IF_ERROR(ParseMessageText(text, file_name, &job, &tree));
  for (const auto& [path, value] : overrides) {
    if (const absl::Status status = ApplyOverride(path, value, &job); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(SetFlag(path, value), ": ", status.message()));
    }
  }
  if (const absl::StatusOr<ResolvedJob> plan = resolve(job); !plan.ok()) {
    return Locate(plan.status(), text, file_name, overrides, &tree);
  }
  return job;
}

}  // namespace

absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file_name,
                             const Overrides& overrides) {
  return ParseJobFor(text, file_name, overrides, Resolve);
}

absl::StatusOr<std::string> ReadJobText(const std::string& path) {
  // Opening a FIFO waits for a process that writes to it, so refuse it. `<(...)` of a shell is a
  // link to a pipe and works.
  std::error_code error;
  if (std::filesystem::is_fifo(std::filesystem::symlink_status(path, error))) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a FIFO, expected a job file"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat(path, ": cannot open the job file: ", std::strerror(errno)));
  }
  std::string text(kMaxJobBytes + 1, '\0');  // one byte more, so that a longer file is noticed
  file.read(&text[0], static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    const bool folder = std::filesystem::is_directory(path, error);
    return absl::InvalidArgumentError(
        absl::StrCat(path, folder ? ": is a folder, expected a job file, such as job.textproto"
                                  : ": cannot read the job file"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return text;
}

absl::StatusOr<Job> ReadJobFile(const std::string& path, const Overrides& overrides) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadJobText(path));
  return ParseJob(text, path, overrides);
}

absl::StatusOr<ResolvedJob> ParseJobForTiming(absl::string_view text, const std::string& file_name,
                                              const Overrides& overrides) {
  TANDEM_ASSIGN_OR_RETURN(const Job job, ParseJobFor(text, file_name, overrides, ResolveForTiming));
  return ResolveForTiming(job);
}

absl::StatusOr<ResolvedJob> ReadJobForTiming(const std::string& path, const Overrides& overrides) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadJobText(path));
  return ParseJobForTiming(text, path, overrides);
}

}  // namespace tandem::job
