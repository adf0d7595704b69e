// Where a worker's batches come from: this worker's share of the files of a job, parsed, shuffled and
// cut into batches. Deterministic in (job, rank, workers, epoch).
#ifndef TANDEM_DATA_BATCH_SOURCE_H_
#define TANDEM_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "job/job.h"

namespace tandem::data {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Back to the start, with the order and the negatives of this epoch.
  virtual absl::Status StartEpoch(int64_t epoch) = 0;

  // Passes over the next `rows` rows of the epoch, or over all that are left, as if Next had given
  // them. Returns how many these were.
  virtual absl::StatusOr<int64_t> Skip(int64_t rows) = 0;

  // Fills `batch`; batch->samples == 0 means the epoch's data has run out. Errors name the file, the
  // line, what was expected and a hint.
  virtual absl::Status Next(Batch* batch) = 0;

  // Rows of this worker's share per epoch where known cheaply (NCF), else an estimate from file
  // sizes; 0 if unknown. For the progress line only.
  virtual int64_t EstimatedRows() const = 0;
};

// What the files look like, found by opening them (used by CheckData and by model construction).
struct DataShape {
  int numeric = 0;                                     // D
  std::vector<std::string> fields;                     // categorical fields, in order
  std::vector<std::vector<std::string>> table_fields;  // per table of the plan: its fields
};

// The shape implied by the job alone; no file is opened.
absl::StatusOr<DataShape> ShapeOfJob(const job::JobPlan& plan);

// The shape implied by the job (and, with a header, by the first file). Errors as above: missing
// file, unknown column, a field that no table reads, a table without a field.
absl::StatusOr<DataShape> FindDataShape(const job::JobPlan& plan);

// What CheckData saw that is no error.
struct DataReport {
  std::vector<std::string> warnings;  // nothing wrong, but rarely what is wanted; one line each
  std::vector<std::string> bad_rows;  // those that data.skip_bad_rows leaves out; one line each
};

// Reads the first rows of each file (all of them if bad ones may be skipped) and refuses what
// `tandem run` should refuse before it starts anything: missing or empty files, rows that do not
// parse, fewer rows than workers.
absl::Status CheckData(const job::JobPlan& plan, DataReport* report = nullptr);

struct SharedReader;  // data/shared_reader.h

// The training rows of worker `rank`, standardised by the plan's statistics or, if it has none, by
// those that are then measured. Rows are dealt to workers so that each row has exactly one
// owner; shares may differ in size. `shared`, which outlives the source: what the workers of one process
// read together; null: it reads by itself.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTrainSource(const job::JobPlan& plan, int rank,
                                                            SharedReader* shared = nullptr);

// The test rows of worker `rank`, in file order; for NCF one group of candidates per user.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTestSource(const job::JobPlan& plan, int rank,
                                                           SharedReader* shared = nullptr);

// The validation rows of worker `rank`, in file order; none if the job has none.
absl::StatusOr<std::unique_ptr<BatchSource>> NewValidationSource(const job::JobPlan& plan, int rank,
                                                                 SharedReader* shared = nullptr);

// What an evaluation scores: test rows (for NCF candidates) if the job has some, else its
// validation rows.
bool HasTestRows(const Data& data);
bool HasValidationRows(const Data& data);

}  // namespace tandem::data

#endif  // TANDEM_DATA_BATCH_SOURCE_H_
