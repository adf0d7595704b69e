// The description of a job's data, filled in before the job starts: means and deviations of numeric
// columns, the label that counts as 0, and the number of columns of files without a header. They are
// measured on the training rows, or taken from a saved model.
#ifndef TANDEM_DATA_STATISTICS_H_
#define TANDEM_DATA_STATISTICS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::data {

// Whether numbers of the job are standardised.
bool NeedsStatistics(const Data& data);

// One pass over the training rows in the order of the files, or over the first
// columns.statistics_rows of them: the same bits on every node. Errors name file and line.
absl::StatusOr<DataStatistics> MeasureStatistics(const job::JobPlan& plan);

// Those of the plan if it has them, else measured; nothing if none are needed.
absl::StatusOr<DataStatistics> StatisticsOf(const job::JobPlan& plan);

// What gives the numbers and ids of a model their meaning: format, columns and statistics, as text of
// one line. It is part of a save.
std::string DescribeData(const Data& data);

// How the data of a job differ from those that a model was trained on, one line each.
struct DataDifferences {
  std::vector<std::string> refused;  // other columns, another order, another transform
  std::vector<std::string>
      said;  // what files may well differ in: spellings of labels and missing values
};
// INVALID_ARGUMENT if the text is not a description.
absl::StatusOr<DataDifferences> CompareData(absl::string_view description, const Data& data);

// Takes statistics, and the label that counts as 0, of a description over into `data`.
// INVALID_ARGUMENT, with the first difference, if the columns of `data` mean something else.
absl::Status AdoptDescription(absl::string_view description, Data* data);

// Fills in what the job leaves to its data, before it starts: the label that counts as 0 and statistics,
// of the save that it starts from if `description` is that of one, else of the training rows in the
// order of their files; and the number of columns, of the training rows if there are any, else of the
// save. The same on every node.
absl::Status FillFromData(absl::string_view description, job::JobPlan* plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_STATISTICS_H_
