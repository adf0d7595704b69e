// The parser and the parts of a job's data with one row a line: which rows train, validate and
// test, and which worker reads which of them.
#ifndef TANDEM_DATA_ROW_DATA_H_
#define TANDEM_DATA_ROW_DATA_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/deal_blocks.h"
#include "data/files.h"
#include "data/row.h"
#include "data/row_source.h"
#include "job/job.h"

namespace tandem::data {

// The parser of the job's format, or of its cache if data.cache is set. Without `statistics`
// numbers are not standardised.
absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data,
                                                        const DataStatistics* statistics);

// The rows for one purpose. Without files there are none.
struct RowPart {
  std::vector<std::string> files;
  std::vector<FileStamp> stamps;  // of the files, from before they were read
  RowSelection rows;
  // The blocks of each worker. Empty: the rows are dealt one by one.
  std::vector<std::vector<Block>> blocks;
};

struct RowParts {
  RowPart train, validation, test;
  Data::Deal deal = Data::ROWS;  // of the training rows
  // Why every worker reads all training files, although they are large and the job allows blocks.
  // Else empty.
  std::string why_rows;
  // The ends of the training, validation and test rows in the training files. Empty if all parts
  // end with the files, or if no worker needs the places.
  std::vector<RowAt> borders;
};

// Divides the rows. test_fraction is the end of the training files. validation.last_fraction is the
// end of the remaining rows. validation.fraction picks from the remaining rows by the job's seed.
// Then deals the rows to the workers.
//
// If the borders of the parts are needed and the job lacks them (data.border), counts the rows,
// which reads the files. If the job does not name its deal, sizes and kinds of the files decide.
// INVALID_ARGUMENT if the job names BLOCKS and a worker would get nothing. FAILED_PRECONDITION if
// the training files have another size than the job says. `parser` may be any parser of the format.
absl::StatusOr<RowParts> FindRowParts(const job::ResolvedJob& plan, RowParser* parser);

// Writes deal, borders and train_bytes into the job, unless they are there. The result is the same
// on every node.
absl::Status FillDeal(job::ResolvedJob* plan);

// Clears what is measured on the data before a job starts: statistics, borders and sizes.
void ClearMeasured(Data* data);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_DATA_H_
