// The data of a job with one row a line: what reads its files, and which of their rows train,
// validate and test.
#ifndef TANDEM_DATA_ROW_DATA_H_
#define TANDEM_DATA_ROW_DATA_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/row.h"
#include "data/row_source.h"
#include "job/job.h"

namespace tandem::data {

// The reader of the job's format. Without `statistics` numbers are not standardised.
absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data,
                                                        const DataStatistics* statistics);

// Rows for one purpose; no files: there are none.
struct RowPart {
  std::vector<std::string> files;
  RowSelection rows;
};

struct RowParts {
  RowPart train, validation, test;
};

// test_fraction is the end of the training files, validation.last_fraction the end of what is left,
// and validation.fraction picks from it by the job's seed. Rows are counted, which reads the files,
// only for the first two. The parser is any of this format.
absl::StatusOr<RowParts> FindRowParts(const job::JobPlan& plan, RowParser* parser);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_DATA_H_
