#include "data/chosen_columns.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "data/cells.h"

namespace tandem::data {
namespace {

// As data::LoadPairs reads them: what separates the cells of the first row does so in all.
absl::StatusOr<std::string> DelimiterOfPairs(const std::vector<std::string>& files) {
  absl::string_view line;
  for (const std::string& file : files) {
    TANDEM_ASSIGN_OR_RETURN(const auto lines, OpenLines(file));
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines->Next(&line));
    if (more) return line.find('\t') == absl::string_view::npos ? "," : "\t";
  }
  return "\t";
}

// How the files are cut into cells, with the chosen columns as the only ones.
absl::StatusOr<Columns> CutsOf(const Data& data, const std::vector<std::string>& files,
                               const std::vector<std::string>& names) {
  Columns columns;
  switch (data.format()) {
    case Data::DELIMITED:
      columns.set_delimiter(data.columns().delimiter());
      columns.set_header(data.columns().header());
      columns.set_trim(data.columns().trim());
      columns.set_quotes(data.columns().quotes());
      break;
    case Data::NCF: {
      TANDEM_ASSIGN_OR_RETURN(*columns.mutable_delimiter(), DelimiterOfPairs(files));
      break;
    }
    case Data::CRITEO:
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("--columns: data.format is ", Data::Format_Name(data.format()),
                       ", whose rows have no columns; hint: line i of the scores is row i"));
  }
  if (columns.delimiter().empty()) columns.set_delimiter("\t");
  for (const std::string& name : names) {
    const bool ncf = data.format() == Data::NCF;
    if (ncf && name != "user" && name != "item") {
      return absl::InvalidArgumentError(absl::StrCat("--columns: rows of NCF have no column ",
                                                     Quote(name), ", expected user or item"));
    }
    columns.add_categorical(!ncf ? name : name == "user" ? "0" : "1");
  }
  return columns;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChosenColumns>> ChosenColumns::Open(
    const Data& data, const std::vector<std::string>& files,
    const std::vector<std::string>& names) {
  TANDEM_ASSIGN_OR_RETURN(const Columns columns, CutsOf(data, files, names));
  TANDEM_ASSIGN_OR_RETURN(
      auto parser, NewDelimitedParser(columns, /*statistics=*/nullptr, /*labels_optional=*/true));
  for (const std::string& file : files) {
    const absl::Status first = CountRows({file}, parser.get(), 1).status();
    if (first.ok()) continue;
    return absl::Status(
        first.code(),
        absl::StrReplaceAll(first.message(), {{"data.columns.categorical", "--columns"}}));
  }
  return std::unique_ptr<ChosenColumns>(
      new ChosenColumns(files, names, columns.delimiter(), std::move(parser)));
}

void ChosenColumns::AppendCell(absl::string_view cell, std::string* text) const {
  const bool plain = cell.find(delimiter_) == absl::string_view::npos &&
                     cell.find_first_of("\"\r\n") == absl::string_view::npos;
  if (plain) {
    absl::StrAppend(text, cell, delimiter_);
  } else {
    absl::StrAppend(text, "\"", absl::StrReplaceAll(cell, {{"\"", "\"\""}}), "\"", delimiter_);
  }
}

std::string ChosenColumns::Header() const {
  std::string text;
  for (const std::string& name : names_) AppendCell(name, &text);
  return text;
}

absl::Status ChosenColumns::AppendNext(std::string* text) {
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, walk_.Next(&line));
  if (!more) return absl::FailedPreconditionError("the files have fewer rows than were scored");
  TANDEM_RETURN_IF_ERROR(walk_.file().Parse(line, &row_));
  for (size_t i = 0; i < names_.size(); ++i) AppendCell(parser_->texts()[i], text);
  return absl::OkStatus();
}

}  // namespace tandem::data
