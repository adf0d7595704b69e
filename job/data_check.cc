#include "job/data_check.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "job/refuse.h"
#include "job/row_shape.h"

namespace tandem::job {
namespace {

constexpr int kBorders = 3;  // after the training rows, the validation rows, the test rows

template <typename Names>
bool Contains(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Checks one column that the job names. A column is a name if the file has a header, else a number
// from 0. Each column is used once.
absl::Status CheckColumn(const std::string& path, const Columns& columns, const std::string& column,
                         std::set<std::string>* used) {
  int64_t number = 0;
  if (column.empty()) return Refuse(path, "a column without a name");
  if (!columns.header() && (!absl::SimpleAtoi(column, &number) || number < 0)) {
    return Refuse(path, "column ", Quoted(column),
                  " is not a number from 0; set columns.header: true if the first line has names");
  }
  if (!used->insert(column).second) {
    return Refuse(path, "column ", Quoted(column), " is used twice");
  }
  return absl::OkStatus();
}

// Checks that no label text counts both as 1 and as 0.
absl::Status CheckLabels(const Columns& columns) {
  const std::set<std::string> positive(columns.positive().begin(), columns.positive().end());
  for (int i = 0; i < columns.negative_size(); ++i) {
    if (positive.count(columns.negative(i)) == 0) continue;
    return Refuse(absl::StrCat("data.columns.negative[", i, "]"), Quoted(columns.negative(i)),
                  " counts as 1 by data.columns.positive; a label counts as 1 or as 0");
  }
  return absl::OkStatus();
}

// Checks the transforms of one column. Only numbers can be filled, clipped and scaled.
absl::Status CheckTransforms(const std::string& path, const Columns& columns,
                             const Column& column) {
  const bool numeric = Contains(columns.numeric(), column.name());
  const bool transforms = column.has_fill() || column.has_clip_min() || column.has_clip_max() ||
                          column.log() || column.scale() != Column::SCALE_UNSPECIFIED ||
                          !column.date().empty();
  if (transforms && !numeric) {
    return Refuse(path, Quoted(column.name()),
                  " is categorical; fill, clip, log, date and scale are for numeric columns");
  }
  if (column.has_clip_min() && column.has_clip_max() && column.clip_min() >= column.clip_max()) {
    return Refuse(path + ".clip_max", column.clip_max(), ", must be above clip_min, which is ",
                  column.clip_min());
  }
  return absl::OkStatus();
}

// Checks that `date` is a form that dates can be written in and read back from. The function tries
// both with one date whose fields are all different.
absl::Status CheckDate(const std::string& path, Data::Format format, const Column& column) {
  if (column.date().empty()) {
    const bool unit = column.date_unit() != Column::DATE_UNIT_UNSPECIFIED;
    if (!unit || format == Data::PARQUET) return absl::OkStatus();
    return Refuse(path + ".date_unit", "set without `date`, which says what a date looks like");
  }
  const absl::Time some = absl::FromUnixSeconds(1735646706);  // 31 December 2024, 12:05:06
  const std::string form = DateForm(column);
  const std::string text = absl::FormatTime(form, some, absl::UTCTimeZone());
  absl::Time read;
  std::string error;
  if (text == form || !absl::ParseTime(form, text, &read, &error) ||
      absl::FormatTime(form, read, absl::UTCTimeZone()) != text) {
    return Refuse(path + ".date", Quoted(column.date()),
                  " is not the form of a date; 31.12.2024 is \"%d.%m.%Y\", 2024-12-31 12:05:06 is "
                  "\"%Y-%m-%d %H:%M:%S\"");
  }
  return absl::OkStatus();
}

// Checks the fields of a column whose cells hold several ids.
absl::Status CheckManyIds(const std::string& path, Data::Format format, const Columns& columns,
                          const Column& column) {
  const bool pools = column.pooling() != Column::POOLING_UNSPECIFIED;
  if (column.separator().empty() && (format != Data::PARQUET || !pools)) {
    if (!pools && column.max_ids() == 0) return absl::OkStatus();
    return Refuse(path, Quoted(column.name()), " has one id a cell; ",
                  format == Data::PARQUET
                      ? "max_ids needs `pooling`, which a list has, or `separator`"
                      : "pooling and max_ids need `separator`");
  }
  if (!Contains(columns.categorical(), column.name())) {
    return Refuse(path, Quoted(column.name()), " has ",
                  column.separator().empty() ? "pooling" : "a separator",
                  ", but is not in data.columns.categorical; cells of several ids are categorical");
  }
  if (column.separator() == columns.delimiter() && columns.quotes() == Columns::NONE) {
    return Refuse(path + ".separator", Quoted(column.separator()),
                  " separates the cells themselves (data.columns.delimiter)");
  }
  return absl::OkStatus();
}

// Checks the entries of data.columns.column. Each entry must describe a column that the job reads
// as an input, and no column has two entries.
absl::Status CheckColumnRules(Data::Format format, const Columns& columns,
                              const std::set<std::string>& used) {
  std::set<std::string> described;
  for (int i = 0; i < columns.column_size(); ++i) {
    const std::string path = absl::StrCat("data.columns.column[", i, "].name");
    const std::string& name = columns.column(i).name();
    if (name.empty()) return Refuse(path, "not set; say which column is meant");
    if (used.count(name) == 0 || name == columns.label()) {
      return Refuse(path, Quoted(name), " is not in data.columns.numeric or categorical");
    }
    if (!described.insert(name).second) {
      return Refuse(path, Quoted(name), " has a `column` already; put all into that one");
    }
    const std::string column = absl::StrCat("data.columns.column[", i, "]");
    TANDEM_RETURN_IF_ERROR(CheckTransforms(column, columns, columns.column(i)));
    TANDEM_RETURN_IF_ERROR(CheckDate(column, format, columns.column(i)));
    TANDEM_RETURN_IF_ERROR(CheckManyIds(column, format, columns, columns.column(i)));
    if (columns.column(i).ids() == Column::RAW && !Contains(columns.categorical(), name)) {
      return Refuse(column + ".ids", "RAW, but ", Quoted(name),
                    " is not in data.columns.categorical; numbers have no ids");
    }
  }
  return absl::OkStatus();
}

// Checks how a line is split into cells and how a cell becomes a number.
absl::Status CheckCells(const Columns& columns) {
  constexpr char kNoDelimiter[] = "\"\r\n";
  if (columns.delimiter().find_first_of(kNoDelimiter) != std::string::npos) {
    return Refuse("data.columns.delimiter", Quoted(columns.delimiter()),
                  ", must be without quotes and line ends");
  }
  const std::string& decimal = columns.decimal();
  if (decimal.empty() || decimal == ".") return absl::OkStatus();
  if (decimal != ",") {
    return Refuse("data.columns.decimal", Quoted(decimal), ", must be \".\" or \",\"");
  }
  if (columns.quotes() == Columns::NONE && absl::StrContains(columns.delimiter(), decimal)) {
    return Refuse("data.columns.decimal", Quoted(decimal),
                  " separates the cells (data.columns.delimiter), and quotes are NONE");
  }
  return absl::OkStatus();
}

// Refuses statistics_rows if no column is standardised, since nothing would then be measured.
absl::Status CheckStatisticsRows(const Columns& columns) {
  const int64_t rows = columns.statistics_rows();
  const auto scaled = [&columns](const std::string& name) {
    for (const Column& column : columns.column()) {
      if (column.name() != name || column.scale() == Column::SCALE_UNSPECIFIED) continue;
      return column.scale() == Column::STANDARDISE;
    }
    return columns.scale() == Column::STANDARDISE;
  };
  if (rows == 0 || std::any_of(columns.numeric().begin(), columns.numeric().end(), scaled)) {
    return absl::OkStatus();
  }
  return Refuse("data.columns.statistics_rows", rows,
                ", but no numeric column has scale STANDARDISE; leave it out");
}

// Refuses fields about text for files whose cells have types.
absl::Status CheckTyped(const Columns& columns) {
  const bool text = !columns.delimiter().empty() || columns.trim() || !columns.decimal().empty() ||
                    columns.quotes() != Columns::QUOTES_UNSPECIFIED;
  if (!text) return absl::OkStatus();
  return Refuse("data.columns", "delimiter, trim, quotes and decimal are for text; leave them out");
}

absl::Status CheckColumns(Data::Format format, const Columns& columns) {
  TANDEM_RETURN_IF_ERROR(format == Data::PARQUET ? CheckTyped(columns) : CheckCells(columns));
  if (columns.label().empty()) {
    return Refuse("data.columns.label", "not set; say which column is the label");
  }
  if (columns.numeric().empty() && columns.categorical().empty()) {
    return Refuse("data.columns", "no numeric and no categorical column; a model needs inputs");
  }
  // The same column may be a number and a category, so each list has its own set of used columns.
  std::set<std::string> numeric, categorical;
  TANDEM_RETURN_IF_ERROR(CheckColumn("data.columns.label", columns, columns.label(), &numeric));
  categorical = numeric;
  for (int i = 0; i < columns.numeric_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(absl::StrCat("data.columns.numeric[", i, "]"), columns,
                                       columns.numeric(i), &numeric));
  }
  for (int i = 0; i < columns.categorical_size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckColumn(absl::StrCat("data.columns.categorical[", i, "]"), columns,
                                       columns.categorical(i), &categorical));
  }
  TANDEM_RETURN_IF_ERROR(CheckLabels(columns));
  TANDEM_RETURN_IF_ERROR(CheckStatisticsRows(columns));
  numeric.insert(categorical.begin(), categorical.end());
  return CheckColumnRules(format, columns, numeric);
}

// Checks the fields of LIBSVM. The format has no columns, but its labels may need names.
absl::Status CheckLibsvm(const Data& data) {
  if (!data.has_columns()) return absl::OkStatus();
  Columns rest = data.columns();
  rest.clear_positive();
  rest.clear_negative();
  if (rest.ByteSizeLong() > 0) {
    return Refuse("data.columns", "of these, LIBSVM takes `positive` and `negative` alone");
  }
  if (data.columns().positive().empty()) {
    return Refuse("data.columns.positive", "not set; say which label counts as 1");
  }
  return CheckLabels(data.columns());
}

absl::Status CheckNegatives(const Data& data) {
  const bool has_candidates = !data.negatives().test_negatives().empty();
  // Files of pairs to score, which nothing is ranked against.
  if (data.score_only()) return absl::OkStatus();
  if (data.test().empty() == has_candidates) {
    return Refuse("data.negatives.test_negatives", has_candidates ? "set" : "not set",
                  ", and test ", has_candidates ? "is not" : "is",
                  "; NCF ranks each row of `test` against the candidates of this file");
  }
  if (data.test_fraction() > 0) {
    return Refuse("data.test_fraction", "not for NCF; its test rows come from `test`");
  }
  return absl::OkStatus();
}

// Refuses fields of one format that are given to another format.
absl::Status CheckOnlyFor(const Data& data) {
  const std::string format = Data::Format_Name(data.format());
  const bool columns = HasColumns(data) || data.format() == Data::LIBSVM;
  if (!columns && data.has_columns()) {
    return Refuse("data.columns", "only for formats DELIMITED and PARQUET; ", format,
                  " has fixed columns");
  }
  if (data.format() != Data::NCF && data.has_negatives()) {
    return Refuse("data.negatives", "only for format NCF; ", format, " rows carry their label");
  }
  if (data.format() != Data::LIBSVM && data.max_ids() != 0) {
    return Refuse("data.max_ids", "only for format LIBSVM; rows of ", format,
                  " have one id a field");
  }
  if (!HasColumns(data) && data.has_statistics()) {
    return Refuse("data.statistics",
                  "only for formats DELIMITED and PARQUET, whose columns are standardised");
  }
  if (data.format() == Data::NCF && data.deal() != Data::DEAL_UNSPECIFIED) {
    return Refuse("data.deal", Data::Deal_Name(data.deal()),
                  "; not for NCF, whose rows are all in the memory of each worker; leave it out");
  }
  if (absl::StrContains(data.cache(), "://")) {
    return Refuse("data.cache", Quoted(data.cache()), " is an address; name a folder of this host");
  }
  if (data.format() == Data::NCF && (!data.cache().empty() || data.readers() > 0)) {
    return Refuse(data.cache().empty() ? "data.readers" : "data.cache",
                  "not for NCF, whose rows are all in the memory of each worker; leave it out");
  }
  return absl::OkStatus();
}

// Refuses addresses such as s3://bucket/rows.csv, which only Parquet files have.
absl::Status CheckAddresses(const Data& data) {
  if (data.format() == Data::PARQUET) return absl::OkStatus();
  const auto check = [&](const char* path, const auto& names) {
    for (const std::string& name : names) {
      if (!absl::StrContains(name, "://")) continue;
      return Refuse(path, Quoted(name), " is an address, which only format PARQUET reads; copy it");
    }
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(check("data.train", data.train()));
  TANDEM_RETURN_IF_ERROR(check("data.validation.files", data.validation().files()));
  return check("data.test", data.test());
}

absl::Status CheckFormat(const Data& data) {
  const std::string& format = Data::Format_Name(data.format());
  if (data.format() == Data::FORMAT_UNSPECIFIED) {
    return Refuse("data.format", "not set; one of ",
                  absl::StrJoin(ValueNames(*Data::Format_descriptor()), ", "));
  }
  TANDEM_RETURN_IF_ERROR(CheckOnlyFor(data));
  TANDEM_RETURN_IF_ERROR(CheckAddresses(data));
  if (HasColumns(data) && !data.has_columns()) {
    return Refuse("data.columns", "not set; format ", format,
                  " needs label, numeric and categorical");
  }
  if (HasColumns(data)) return CheckColumns(data.format(), data.columns());
  if (data.format() == Data::LIBSVM) return CheckLibsvm(data);
  if (data.format() == Data::NCF) return CheckNegatives(data);
  return absl::OkStatus();
}

absl::Status CheckValidation(const Data& data) {
  const Validation& validation = data.validation();
  const int ways = (validation.files().empty() ? 0 : 1) + (validation.fraction() > 0 ? 1 : 0) +
                   (validation.last_fraction() > 0 ? 1 : 0);
  if (data.has_validation() && ways != 1) {
    return Refuse("data.validation", ways == 0 ? "empty" : "set in more than one way",
                  "; say one of files, fraction and last_fraction");
  }
  if (ways > 0 && data.format() == Data::NCF) {
    return Refuse("data.validation", "not for NCF, which ranks test rows against candidates");
  }
  return absl::OkStatus();
}

// Checks max_bad_rows. The label that counts as 0 must be named then: otherwise the first label
// that does not count as 1 becomes that label, and this first label could be a bad one.
absl::Status CheckSkipBadRows(const Data& data) {
  if (data.max_bad_rows() == 0) return absl::OkStatus();
  if (data.format() == Data::NCF) return Refuse("data.max_bad_rows", "not for NCF");
  if (!data.columns().positive().empty() && data.columns().negative().empty()) {
    return Refuse("data.columns.negative",
                  "not set, but data.max_bad_rows is; name the labels that count as 0, so that a "
                  "bad label is seen as one");
  }
  return absl::OkStatus();
}

// Refuses all fields of `data` for a program. The program reads its data itself, so nothing would
// obey these fields.
absl::Status CheckProgramData(const Data& data) {
  Data rest = data;
  rest.clear_format();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  rest.GetReflection()->ListFields(rest, &fields);
  if (fields.empty()) return absl::OkStatus();
  return Refuse(absl::StrCat("data.", fields[0]->name()),
                "not for format PROGRAM, whose batches come from the program; leave it out");
}

}  // namespace

absl::Status CheckDataSpec(const Data& data) {
  if (data.format() == Data::PROGRAM) return CheckProgramData(data);
  TANDEM_RETURN_IF_ERROR(CheckFormat(data));
  if (data.score_only() && data.test().empty()) return Refuse("data.test", "no files to score");
  if (data.train().empty() && !data.score_only()) {
    return Refuse("data.train", "no files to train on");
  }
  if (data.shuffle_buffer() > 0 && data.format() == Data::NCF) {
    return Refuse("data.shuffle_buffer", data.shuffle_buffer(),
                  "; not for NCF, whose rows are all shuffled in each epoch; leave it out");
  }
  if (data.test_fraction() > 0 && !data.test().empty()) {
    return Refuse("data.test_fraction",
                  "set together with `test`; keep the files or the fraction, not both");
  }
  if (data.border_size() != 0 && data.border_size() != kBorders) {
    return Refuse("data.border", data.border_size(), " of them, expected none or ", kBorders,
                  "; tandem run writes it; leave it out");
  }
  TANDEM_RETURN_IF_ERROR(CheckValidation(data));
  return CheckSkipBadRows(data);
}

}  // namespace tandem::job
