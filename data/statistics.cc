#include "data/statistics.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/files.h"
#include "data/row_data.h"
#include "data/transforms.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

// Ignores the parser's messages, since the caller gives its own error.
class Silence final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int /*line*/, int /*column*/, const std::string& /*message*/) override {}
};

// Describes what happens to the numbers of a column: "clip_min 0, log, STANDARDISE". Two texts
// differ exactly if the resulting numbers would differ.
std::string TransformText(const Columns& columns, const std::string& name) {
  const Column rule = RuleOf(columns, name);
  std::vector<std::string> words;
  if (!rule.date().empty()) {
    words.push_back(rule.date_unit() == Column::SECONDS ? "date in SECONDS" : "date in DAYS");
  }
  if (rule.has_fill()) words.push_back(absl::StrFormat("fill %.17g", rule.fill()));
  if (rule.has_clip_min()) words.push_back(absl::StrFormat("clip_min %.17g", rule.clip_min()));
  if (rule.has_clip_max()) words.push_back(absl::StrFormat("clip_max %.17g", rule.clip_max()));
  if (rule.log() || columns.log_transform()) words.push_back("log");
  words.push_back(IsStandardised(columns, rule) ? "STANDARDISE" : "NONE");
  return absl::StrJoin(words, ", ");
}

// How many ids a cell has, and which: "one", or "several (MEAN), RAW".
std::string IdsText(const Columns& columns, const std::string& name) {
  const Column rule = RuleOf(columns, name);
  const char* const raw = rule.ids() == Column::RAW ? ", RAW" : "";
  if (!job::HasManyIds(rule)) return absl::StrCat("one", raw);
  return absl::StrCat(rule.pooling() == Column::MEAN ? "several (MEAN)" : "several (SUM)", raw);
}

template <typename Names>
std::string ShownNames(const Names& names) {
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

std::string Differs(absl::string_view field, absl::string_view saved, absl::string_view now,
                    absl::string_view hint) {
  return absl::StrCat(field, " is ", now, ", but the checkpoint was trained with ", saved,
                      "; hint: ", hint);
}

constexpr char kMakeSame[] = "make them the same, or train a new model";

void CompareMeaning(const Data& saved, const Data& now, std::vector<std::string>* out) {
  const Columns &before = saved.columns(), &after = now.columns();
  const auto compare = [&](absl::string_view field, const std::string& was, const std::string& is) {
    if (was != is) out->push_back(Differs(field, was, is, kMakeSame));
  };
  // The same cells have the same ids and numbers in text and in Parquet files.
  if (!job::HasColumns(saved) || !job::HasColumns(now)) {
    compare("data.format", Data::Format_Name(saved.format()), Data::Format_Name(now.format()));
  }
  if (!out->empty()) return;  // all other differences follow from it
  compare("data.columns.numeric", ShownNames(before.numeric()), ShownNames(after.numeric()));
  const bool same_numbers = out->empty();
  compare("data.columns.categorical", ShownNames(before.categorical()),
          ShownNames(after.categorical()));
  for (const std::string& name : after.categorical()) {
    compare(absl::StrCat("ids in a cell of column ", Quote(name)), IdsText(before, name),
            IdsText(after, name));
  }
  if (!same_numbers) return;
  for (const std::string& name : after.numeric()) {
    compare(absl::StrCat("the transform of column ", Quote(name)), TransformText(before, name),
            TransformText(after, name));
  }
}

void CompareSpellings(const Data& saved, const Data& now, std::vector<std::string>* out) {
  const Columns &before = saved.columns(), &after = now.columns();
  const auto compare = [&](const char* field, const auto& was, const auto& is, const char* hint) {
    if (ShownNames(was) == ShownNames(is)) return;
    out->push_back(
        Differs(absl::StrCat("data.columns.", field), ShownNames(was), ShownNames(is), hint));
  };
  compare("positive", before.positive(), after.positive(),
          "labels that change sides make a good model a bad one");
  if (!after.negative().empty())
    compare("negative", before.negative(), after.negative(),
            "labels that change sides make a good model a bad one");
  constexpr char kIfSpelled[] = "right if the files spell it so";
  compare("missing", before.missing(), after.missing(), kIfSpelled);
  for (const auto* const names : {&after.numeric(), &after.categorical()}) {
    for (const std::string& name : *names) {
      compare(absl::StrCat("column ", Quote(name), " missing").c_str(),
              RuleOf(before, name).missing(), RuleOf(after, name).missing(), kIfSpelled);
    }
  }
  const auto compare_text = [&](const std::string& field, const std::string& was,
                                const std::string& is, const char* hint) {
    if (was != is) out->push_back(Differs(field, was, is, hint));
  };
  compare_text("data.columns.trim", before.trim() ? "true" : "false",
               after.trim() ? "true" : "false", "an id with blanks around it is another id");
  const auto quotes = [](const Columns& columns) {
    return columns.quotes() == Columns::NONE ? "NONE" : "DOUBLE";
  };
  compare_text("data.columns.quotes", quotes(before), quotes(after),
               "an id with quotes around it is another id");
  const auto decimal = [](const Columns& columns) {
    return Quote(columns.decimal().empty() ? "." : columns.decimal());
  };
  compare_text("data.columns.decimal", decimal(before), decimal(after), kIfSpelled);
  for (const Column& column : after.column()) {
    const Column was = RuleOf(before, column.name());
    const std::string name = absl::StrCat("column ", Quote(column.name()));
    compare_text(name + " date", Quote(was.date()), Quote(column.date()), kIfSpelled);
    compare_text(name + " separator", Quote(was.separator()), Quote(column.separator()),
                 kIfSpelled);
  }
}

// How many columns a training row has, for columns with numbers as names. 0 if columns have names
// or there is no row.
absl::StatusOr<size_t> TrainedColumns(const Data& data) {
  if (data.format() != Data::DELIMITED || data.columns().header()) return 0;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                          ExpandAllFiles("data.train", {data.train().begin(), data.train().end()}));
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  RowWalk walk(&files, parser.get(), RowSelection());
  absl::string_view line;
  TANDEM_RETURN_IF_ERROR(walk.Next(&line).status());
  return parser->columns();
}

absl::StatusOr<Data> ParseDescription(absl::string_view description) {
  Data data;
  google::protobuf::TextFormat::Parser parser;
  Silence silence;
  parser.RecordErrorsTo(&silence);
  if (parser.ParseFromString(std::string(description), &data)) return data;
  return absl::InvalidArgumentError("not a description of data; hint: copy the checkpoint again");
}

}  // namespace

bool NeedsStatistics(const Data& data) {
  if (!job::HasColumns(data)) return false;
  for (const std::string& name : data.columns().numeric()) {
    if (IsStandardised(data.columns(), RuleOf(data.columns(), name))) return true;
  }
  return false;
}

absl::StatusOr<DataStatistics> MeasureStatistics(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(plan, parser.get()));
  if (parts.train.files.empty()) {
    return absl::FailedPreconditionError(
        "there are no means and deviations of numeric columns: no files to train on, and no saved "
        "model that has them; hint: --init-from");
  }
  RowPass pass(&parts.train.files, parser.get(), parts.train.rows, RowShare(), data.max_bad_rows());
  ColumnMoments moments({data.columns().numeric().begin(), data.columns().numeric().end()});
  const int64_t most = data.columns().statistics_rows();
  Row row;
  for (int64_t rows = 0; most == 0 || rows < most; ++rows) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, pass.Next(&row));
    if (!more) break;
    moments.Add(parser->values());
  }
  return moments.Finish();
}

absl::StatusOr<DataStatistics> StatisticsOf(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  if (!NeedsStatistics(data)) return DataStatistics();
  if (data.has_statistics()) return data.statistics();
  return MeasureStatistics(plan);
}

std::string DescribeData(const Data& data) {
  Data described;
  described.set_format(data.format());
  if (data.has_columns()) *described.mutable_columns() = data.columns();
  if (data.has_statistics()) *described.mutable_statistics() = data.statistics();
  if (data.validation().fraction() > 0) described.set_deal(data.deal());
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string text;
  TANDEM_CHECK(printer.PrintToString(described, &text));
  return text;
}

absl::StatusOr<DataDifferences> CompareData(absl::string_view description, const Data& data) {
  TANDEM_ASSIGN_OR_RETURN(const Data saved, ParseDescription(description));
  DataDifferences differences;
  CompareMeaning(saved, data, &differences.refused);
  CompareSpellings(saved, data, &differences.said);
  return differences;
}

absl::Status AdoptDescription(absl::string_view description, Data* data) {
  TANDEM_ASSIGN_OR_RETURN(const Data saved, ParseDescription(description));
  std::vector<std::string> differences;
  CompareMeaning(saved, *data, &differences);
  if (!differences.empty()) return absl::InvalidArgumentError(differences[0]);
  if (saved.has_statistics()) *data->mutable_statistics() = saved.statistics();
  const bool same_ones =
      ShownNames(saved.columns().positive()) == ShownNames(data->columns().positive());
  if (same_ones && data->columns().negative().empty() && !saved.columns().negative().empty()) {
    *data->mutable_columns()->mutable_negative() = saved.columns().negative();
  }
  // The deal decides which rows are picked to validate. Rows that have trained the model must not
  // validate it. Earlier versions dealt ROWS and did not record it.
  if (data->validation().fraction() > 0 && data->deal() == Data::DEAL_UNSPECIFIED) {
    data->set_deal(saved.deal() == Data::BLOCKS ? Data::BLOCKS : Data::ROWS);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FirstNegative(const Data& data) {
  if (data.columns().positive().empty() || !data.columns().negative().empty()) return "";
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, FirstFiles(data));
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  RowPass pass(&files, parser.get(), RowSelection(), RowShare(), data.max_bad_rows());
  Row row;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, pass.Next(&row));
    if (const std::string found = parser->LearnedNegative(); !more || !found.empty()) return found;
  }
}

absl::Status FillFromData(absl::string_view description, job::ResolvedJob* plan) {
  Data* const data = plan->job.mutable_data();
  if (!description.empty()) TANDEM_RETURN_IF_ERROR(AdoptDescription(description, data));
  TANDEM_ASSIGN_OR_RETURN(const std::string negative, FirstNegative(*data));
  if (!negative.empty()) data->mutable_columns()->add_negative(negative);
  TANDEM_RETURN_IF_ERROR(FillDeal(plan));
  TANDEM_ASSIGN_OR_RETURN(DataStatistics statistics, StatisticsOf(*plan));
  if (statistics.column_size() > 0) *data->mutable_statistics() = std::move(statistics);
  TANDEM_ASSIGN_OR_RETURN(const size_t columns, TrainedColumns(*data));
  if (columns > 0) data->mutable_statistics()->set_columns(static_cast<int64_t>(columns));
  return absl::OkStatus();
}

}  // namespace tandem::data
