// Where a worker's batches come from: this worker's share of the files of a job, parsed, shuffled and
// cut into batches. Deterministic in (job, rank, workers, epoch).
#ifndef TANDEM_DATA_BATCH_SOURCE_H_
#define TANDEM_DATA_BATCH_SOURCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "data/batch.h"
#include "job/job.h"

namespace tandem {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Back to the start, with the order and the negatives of this epoch.
  virtual absl::Status StartEpoch(int64_t epoch) = 0;

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

// The shape implied by the job (and, with a header, by the first file). Errors as above: missing
// file, unknown column, a field that no table reads, a table without a field.
absl::StatusOr<DataShape> FindDataShape(const JobPlan& plan);

// Reads the first rows of each file and refuses what `tandem run` should refuse before it starts
// anything: missing or empty files, rows that do not parse, fewer rows than workers.
absl::Status CheckData(const JobPlan& plan);

// The training rows of worker `rank`: rows are dealt to workers so that each row has exactly one
// owner; shares may differ in size.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTrainSource(const JobPlan& plan, int rank);

// The test rows of worker `rank`, in file order; for NCF one group of candidates per user.
absl::StatusOr<std::unique_ptr<BatchSource>> NewTestSource(const JobPlan& plan, int rank);

}  // namespace tandem

#endif  // TANDEM_DATA_BATCH_SOURCE_H_
