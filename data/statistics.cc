#include "data/statistics.h"

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/row_data.h"
#include "data/transforms.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace tandem {
namespace {

// What the parser finds wrong is said by us.
class Silence final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int /*line*/, int /*column*/, const std::string& /*message*/) override {}
};

// "clip_min 0, log, STANDARDISE": what happens to the numbers of a column, in words that differ
// where the numbers would.
std::string TransformText(const Columns& columns, const std::string& name) {
  const Column rule = RuleOf(columns, name);
  std::vector<std::string> words;
  if (rule.has_fill()) words.push_back(absl::StrCat("fill ", rule.fill()));
  if (rule.has_clip_min()) words.push_back(absl::StrCat("clip_min ", rule.clip_min()));
  if (rule.has_clip_max()) words.push_back(absl::StrCat("clip_max ", rule.clip_max()));
  if (rule.log() || columns.log_transform()) words.push_back("log");
  words.push_back(IsStandardised(columns, rule) ? "STANDARDISE" : "NONE");
  return absl::StrJoin(words, ", ");
}

template <typename Names>
std::string ShownNames(const Names& names) {
  return absl::StrCat("[", absl::StrJoin(names, ", "), "]");
}

absl::Status Differs(absl::string_view field, absl::string_view saved, absl::string_view now) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", now, ", but the saved model was trained with ", saved,
                   "; hint: make them the same, or train a new model"));
}

absl::Status CheckSameMeaning(const Data& saved, const Data& now) {
  if (saved.format() != now.format()) {
    return Differs("data.format", Data::Format_Name(saved.format()),
                   Data::Format_Name(now.format()));
  }
  const Columns &before = saved.columns(), &after = now.columns();
  if (ShownNames(before.numeric()) != ShownNames(after.numeric())) {
    return Differs("data.columns.numeric", ShownNames(before.numeric()),
                   ShownNames(after.numeric()));
  }
  if (ShownNames(before.categorical()) != ShownNames(after.categorical())) {
    return Differs("data.columns.categorical", ShownNames(before.categorical()),
                   ShownNames(after.categorical()));
  }
  for (const std::string& name : after.numeric()) {
    const std::string was = TransformText(before, name), is = TransformText(after, name);
    if (was != is) return Differs(absl::StrCat("the transform of column ", Quote(name)), was, is);
  }
  return absl::OkStatus();
}

}  // namespace

bool NeedsStatistics(const Data& data) {
  if (data.format() != Data::DELIMITED) return false;
  for (const std::string& name : data.columns().numeric()) {
    if (IsStandardised(data.columns(), RuleOf(data.columns(), name))) return true;
  }
  return false;
}

absl::StatusOr<DataStatistics> MeasureStatistics(const JobPlan& plan) {
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(plan, parser.get()));
  RowPass pass(&parts.train.files, parser.get(), parts.train.rows, RowShare(),
               data.skip_bad_rows());
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

absl::StatusOr<DataStatistics> StatisticsOf(const JobPlan& plan) {
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
  std::string text;
  TANDEM_CHECK(google::protobuf::TextFormat::PrintToString(described, &text));
  return text;
}

absl::Status AdoptDescription(absl::string_view description, Data* data) {
  Data saved;
  google::protobuf::TextFormat::Parser parser;
  Silence silence;
  parser.RecordErrorsTo(&silence);
  if (!parser.ParseFromString(std::string(description), &saved)) {
    return absl::InvalidArgumentError("not a description of data; hint: copy the save again");
  }
  TANDEM_RETURN_IF_ERROR(CheckSameMeaning(saved, *data));
  if (saved.has_statistics()) *data->mutable_statistics() = saved.statistics();
  return absl::OkStatus();
}

absl::Status FillStatistics(const std::string& save, JobPlan* plan) {
  Data* const data = plan->job.mutable_data();
  const std::string path = absl::StrCat(save, "/", kDataDescriptionFile);
  std::ifstream file;
  if (!save.empty()) file.open(path, std::ios::binary);
  if (file.is_open()) {
    std::stringstream description;
    description << file.rdbuf();
    const absl::Status adopted = AdoptDescription(description.str(), data);
    if (!adopted.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", adopted.message()));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(DataStatistics statistics, StatisticsOf(*plan));
  if (statistics.column_size() > 0) *data->mutable_statistics() = std::move(statistics);
  return absl::OkStatus();
}

}  // namespace tandem
