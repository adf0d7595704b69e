// The parser and the parts of a job's data with one row a line: which rows train, validate and
// test.
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

// The parser of the job's format. Without `statistics` numbers are not standardised.
absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data,
                                                        const DataStatistics* statistics);

// The rows for one purpose. Without files there are none.
struct RowPart {
  std::vector<std::string> files;
  RowSelection rows;
};

struct RowParts {
  RowPart train, validation, test;
};

// Divides the rows. test_fraction is the end of the training files. validation.last_fraction is the
// end of the remaining rows. validation.fraction picks from the remaining rows by the job's seed.
// Only the first two need to count rows, which reads the files. `parser` may be any parser of the
// format.
absl::StatusOr<RowParts> FindRowParts(const job::ResolvedJob& plan, RowParser* parser);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_DATA_H_
