// How the workers of a job sum their dense gradients: algorithm and segment by size, and buckets.
//
// What the links cost is read from the job's file or measured, which takes some tenths of a second;
// rank 0 decides, and the others take its word, so that all choose alike. A job's rules are taken
// before what was measured. Nothing is measured where nothing is to be chosen: with one worker, in
// a reproducible job (which adds in rank order, at once), or if the job names the algorithm and the
// buckets; nor between more than 16, since every algorithm is played.
#ifndef TANDEM_WORKER_TUNE_GROUP_H_
#define TANDEM_WORKER_TUNE_GROUP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/tuning/chooser.h"
#include "job/job.h"

namespace tandem::worker {

struct DenseTuning {
  int64_t bucket_bytes = 0;  // 0: the gradient at once, after the backward pass
  // What was chosen and why, for the summary (an object) and for a log. Empty with one worker, and
  // at all ranks but 0.
  std::string json, line;
};

// Whether the job's rules can be read, and its file of costs: INVALID_ARGUMENT names the field.
absl::Status CheckDenseChoices(const job::JobPlan& plan);

// All ranks call it, before any other operation of the group. `rules` becomes what the group is to
// choose by: its chooser is ChooserFrom(rules). Errors of rank 0, such as a file that cannot be
// read, are those of all ranks.
absl::StatusOr<DenseTuning> TuneGroup(const job::JobPlan& plan, int64_t gradient_bytes,
                                      absl::Span<const int> host_of_rank, collectives::Group& group,
                                      collectives::ChooserRules* rules);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TUNE_GROUP_H_
