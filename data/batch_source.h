// The sources of a worker's batches. A source parses, shuffles and cuts into batches the worker's
// share of the files of a job. The batches depend only on (job, rank, workers, epoch).
#ifndef TANDEM_DATA_BATCH_SOURCE_H_
#define TANDEM_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "data/batch.h"
#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::data {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Goes back to the start of the data, with the row order and the negatives of this epoch.
  virtual absl::Status StartEpoch(int64_t epoch) = 0;

  // Skips the next `rows` rows of the epoch, or all remaining ones, as if Next had returned them.
  // Returns how many rows were skipped.
  virtual absl::StatusOr<int64_t> Skip(int64_t rows) = 0;

  // The place of the last row that Next has returned, from which ContinueAt goes on. None if the
  // source knows no place: compressed files, shuffled rows, NCF, workers that read together, and
  // after the last row.
  virtual absl::optional<ReadPlace> Place() const { return absl::nullopt; }

  // Right after StartEpoch: skips the rows up to this place, without reading them. Returns how many
  // rows were skipped; 0 if the source knows no places. Errors name the file: FAILED_PRECONDITION
  // if another row is there.
  virtual absl::StatusOr<int64_t> ContinueAt(const ReadPlace& /*place*/) { return 0; }

  // Fills `batch`. batch->samples == 0 means that the epoch has no more data. Errors name the file,
  // the line, what was expected and a hint.
  virtual absl::Status Next(Batch* batch) = 0;

  // How many rows this worker has per epoch: exact if that is cheap to know (NCF), else estimated
  // from file sizes; 0 if unknown. For the progress line only.
  virtual int64_t EstimatedRows() const = 0;
};

// The shape of the data. CheckData and model construction find it by opening the files.
struct DataShape {
  int numeric = 0;                                     // D
  std::vector<std::string> fields;                     // categorical fields, in order
  std::vector<std::vector<std::string>> table_fields;  // the fields of each table of the plan
};

// The shape that follows from the job alone. Opens no file.
absl::StatusOr<DataShape> ShapeOfJob(const job::ResolvedJob& plan);

// The shape that follows from the job and, if files have a header, from the first file. Errors as
// above: a missing file, an unknown column, a field that no table reads, a table without a field.
absl::StatusOr<DataShape> FindDataShape(const job::ResolvedJob& plan);

// The findings of CheckData that are no errors.
struct DataReport {
  std::vector<std::string> warnings;  // valid, but rarely what the user wants; one line each
  std::vector<std::string> bad_rows;  // rows that data.max_bad_rows leaves out; one line each
};

// Reads the first rows of each file, or all rows if bad ones may be skipped. Refuses everything
// that `tandem run` should refuse before it starts a process: missing or empty files, rows that do
// not parse, fewer rows than workers.
absl::Status CheckData(const job::ResolvedJob& plan, DataReport* report = nullptr);

struct SharedReader;  // data/shared_reader.h

// The training rows of worker `rank`. Numbers are standardised by the plan's statistics; if the
// plan has none, they are measured first. Each row belongs to exactly one worker; shares may differ
// in size. `shared` holds what the workers of one process read together, and must outlive the
// source; null: the source reads by itself. With `shared`, data.readers is ignored: each worker
// parses its rows as it needs them.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTrainSource(const job::ResolvedJob& plan, int rank,
                                                            SharedReader* shared = nullptr);

// The test rows of worker `rank`, in file order. For NCF they are one group of candidates for each
// user.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTestSource(const job::ResolvedJob& plan, int rank,
                                                           SharedReader* shared = nullptr);

// The validation rows of worker `rank`, in file order. Empty if the job has none.
absl::StatusOr<std::unique_ptr<BatchSource>> NewValidationSource(const job::ResolvedJob& plan,
                                                                 int rank,
                                                                 SharedReader* shared = nullptr);

// Whether the job has test rows (for NCF, candidates) or validation rows. An evaluation scores the
// test rows if the job has some, else the validation rows.
bool HasTestRows(const Data& data);
bool HasValidationRows(const Data& data);

}  // namespace tandem::data

#endif  // TANDEM_DATA_BATCH_SOURCE_H_
