// The statistics of a job's data, which are filled in before the job starts: means and deviations
// of numeric columns, the label that counts as 0, and the number of columns of files without a
// header. The statistics are measured on the training rows, or taken from a checkpoint.
#ifndef TANDEM_DATA_STATISTICS_H_
#define TANDEM_DATA_STATISTICS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem::data {

// Whether the job standardises any numbers.
bool NeedsStatistics(const Data& data);

// Measures the statistics in one pass over the training rows, in the order of the files, or over
// the first columns.statistics_rows of them. Every node gets the same bits. Errors name file and
// line.
absl::StatusOr<DataStatistics> MeasureStatistics(const job::ResolvedJob& plan);

// The plan's statistics if it has some, else measured ones. Empty if the job needs none.
absl::StatusOr<DataStatistics> StatisticsOf(const job::ResolvedJob& plan);

// The first label in the files that does not count as 1. This label counts as 0 for all workers. ""
// if there is none, or if the job or the format determines what counts as 0.
absl::StatusOr<std::string> FirstNegative(const Data& data);

// The description of a model's data: format, columns and statistics, which give the model's numbers
// and ids their meaning; and the deal of the rows, if it decides which rows validate
// (validation.fraction). One line of text; part of a checkpoint.
std::string DescribeData(const Data& data);

// How the data of a job differ from the data that a model was trained on, one line for each
// difference.
struct DataDifferences {
  std::vector<std::string> refused;  // other columns, another order, another transform
  // Differences that files may have: spellings of labels and of missing values.
  std::vector<std::string> said;
};
// INVALID_ARGUMENT if the text is not a description.
absl::StatusOr<DataDifferences> CompareData(absl::string_view description, const Data& data);

// Copies the statistics and the label that counts as 0 from a description into `data`. Copies the
// deal, too, if `data` has validation.fraction and names no deal.
// INVALID_ARGUMENT, with the first difference, if the columns of `data` mean something else.
absl::Status AdoptDescription(absl::string_view description, Data* data);

// Fills in, before the job starts, what the job file leaves open. The deal of the rows follows from
// the files (data/row_data.h). The label that counts as 0 and the statistics come from
// `description`, if the job starts from a checkpoint, else from the training rows in the order of
// their files. The number of columns comes from the training rows if there are any, else from the
// checkpoint. The result is the same on every node.
absl::Status FillFromData(absl::string_view description, job::ResolvedJob* plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_STATISTICS_H_
