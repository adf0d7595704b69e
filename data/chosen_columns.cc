#include "data/chosen_columns.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/ncf.h"

namespace tandem::data {
namespace {

// How the files are cut into cells, with the chosen columns as the only columns.
absl::StatusOr<Columns> CutsOf(const Data& data, const std::vector<std::string>& names) {
  Columns columns;
  if (data.format() == Data::DELIMITED) {
    columns.set_delimiter(data.columns().delimiter());
    columns.set_header(data.columns().header());
    columns.set_trim(data.columns().trim());
    columns.set_quotes(data.columns().quotes());
  } else if (data.format() == Data::CRITEO) {
    columns.set_quotes(Columns::NONE);
  } else if (data.format() != Data::PARQUET) {
    return absl::InvalidArgumentError(
        absl::StrCat("--columns: data.format is ", Data::Format_Name(data.format()),
                     ", whose rows have no columns; hint: line i of the scores is row i"));
  }
  if (columns.delimiter().empty()) columns.set_delimiter("\t");
  for (const std::string& name : names) columns.add_categorical(name);
  return columns;
}

// The delimiter of files of pairs: a tab if the first pair has one, else a comma.
absl::StatusOr<std::string> DelimiterOfPairs(const std::vector<std::string>& files,
                                             RowParser* parser) {
  RowWalk walk(&files, parser, RowSelection());
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, walk.Next(&line));
  return more && line.find('\t') == absl::string_view::npos ? "," : "\t";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChosenColumns>> ChosenColumns::Open(
    const Data& data, const std::vector<std::string>& files,
    const std::vector<std::string>& names) {
  if (data.format() == Data::NCF) return OpenPairs(files, names);
  TANDEM_ASSIGN_OR_RETURN(const Columns columns, CutsOf(data, names));
  TANDEM_ASSIGN_OR_RETURN(
      auto parser, data.format() == Data::PARQUET
                       ? NewParquetParser(columns, /*statistics=*/nullptr, /*labels_optional=*/true)
                       : NewDelimitedParser(columns, /*statistics=*/nullptr,
                                            /*labels_optional=*/true));
  for (const std::string& file : files) {
    const absl::Status first = CountRows({file}, parser.get(), 1).status();
    if (first.ok()) continue;
    return absl::Status(
        first.code(),
        absl::StrReplaceAll(first.message(), {{"data.columns.categorical", "--columns"}}));
  }
  std::vector<size_t> texts(names.size());
  std::iota(texts.begin(), texts.end(), size_t{0});
  return std::unique_ptr<ChosenColumns>(
      new ChosenColumns(files, names, columns.delimiter(), std::move(parser), std::move(texts)));
}

absl::StatusOr<std::unique_ptr<ChosenColumns>> ChosenColumns::OpenPairs(
    const std::vector<std::string>& files, const std::vector<std::string>& names) {
  std::vector<size_t> texts;
  for (const std::string& name : names) {
    if (name != "user" && name != "item") {
      return absl::InvalidArgumentError(absl::StrCat("--columns: rows of NCF have no column ",
                                                     Quote(name), ", expected user or item"));
    }
    texts.push_back(name == "user" ? kNcfUser : kNcfItem);
  }
  auto parser = NewPairParser();
  TANDEM_ASSIGN_OR_RETURN(std::string delimiter, DelimiterOfPairs(files, parser.get()));
  return std::unique_ptr<ChosenColumns>(
      new ChosenColumns(files, names, std::move(delimiter), std::move(parser), std::move(texts)));
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
  TANDEM_RETURN_IF_ERROR(ReadNext());
  for (const size_t i : texts_) AppendCell(parser_->texts()[i], text);
  return absl::OkStatus();
}

absl::Status ChosenColumns::AppendNext(absl::Span<std::vector<std::string>> cells) {
  TANDEM_RETURN_IF_ERROR(ReadNext());
  for (size_t i = 0; i < texts_.size(); ++i) {
    cells[i].emplace_back(parser_->texts()[texts_[i]]);
  }
  return absl::OkStatus();
}

absl::Status ChosenColumns::ReadNext() {
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, walk_.Next(&line));
  if (!more) return absl::FailedPreconditionError("the files have fewer rows than were scored");
  return walk_.file().Parse(line, &row_);
}

absl::Status ChosenColumns::CheckEnd() {
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool more, walk_.Next(&line));
  if (!more) return absl::OkStatus();
  const absl::Status row = walk_.file().Error("this row has no score");
  return absl::FailedPreconditionError(
      absl::StrCat(row.message(), ": the files have more rows than were scored"));
}

}  // namespace tandem::data
