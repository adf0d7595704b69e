// Means and deviations of a job's numeric columns: measured on its training rows, or those that a
// saved model was trained with.
#ifndef TANDEM_DATA_STATISTICS_H_
#define TANDEM_DATA_STATISTICS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "job/job.h"

namespace tandem {

// Whether numbers of the job are standardised.
bool NeedsStatistics(const Data& data);

// One pass over the training rows in the order of the files, or over the first
// columns.statistics_rows of them: the same bits on every node. Errors name file and line.
absl::StatusOr<DataStatistics> MeasureStatistics(const JobPlan& plan);

// Those of the plan if it has them, else measured; nothing if none are needed.
absl::StatusOr<DataStatistics> StatisticsOf(const JobPlan& plan);

// What gives the numbers and ids of a model their meaning: format, columns and statistics, as text.
// It lies beside the model in a save.
inline constexpr char kDataDescriptionFile[] = "data.textproto";
std::string DescribeData(const Data& data);

// Takes the statistics of a description over into `data`. INVALID_ARGUMENT, with the difference, if
// the columns of `data` mean something else: other ones, another order, another transform.
absl::Status AdoptDescription(absl::string_view description, Data* data);

// Fills in the plan's statistics before a job starts: from the description in the folder `save` (empty:
// the job starts afresh) if there is one, else measured. Errors name the file.
absl::Status FillStatistics(const std::string& save, JobPlan* plan);

}  // namespace tandem

#endif  // TANDEM_DATA_STATISTICS_H_
