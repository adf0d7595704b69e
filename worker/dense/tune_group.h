// Chooses how the workers of a job sum their dense gradients: algorithm and segment size by message
// size, and the bucket size.
//
// The costs of the links are read from the job's file or measured, which takes some tenths of a
// second. Rank 0 decides and sends its decision to the others, so that all workers choose alike.
// Rules in the job override measured ones. Nothing is measured if there is nothing to choose: with
// one worker, in a reproducible job (which adds in rank order, in one piece), or if the job names
// the algorithm and the buckets. Nothing is measured between more than 64 workers either
// (kMaxRanksPlayed), because every algorithm is simulated.
#ifndef TANDEM_WORKER_DENSE_TUNE_GROUP_H_
#define TANDEM_WORKER_DENSE_TUNE_GROUP_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/group.h"
#include "collectives/tuning/chooser.h"
#include "job/job.h"
#include "worker/dense/device_sum.h"

namespace tandem::worker {

struct DenseTuning {
  int64_t bucket_bytes = 0;  // 0: the whole gradient in one piece, after the backward pass
  // The choices and their reasons: a JSON object for the summary, and a line for the log. Empty
  // with one worker, and on all ranks except 0.
  std::string json, line;
};

// Checks that the job's rules and its file of costs can be read. INVALID_ARGUMENT names the field.
absl::Status CheckDenseChoices(const job::ResolvedJob& plan);

// All ranks call this function at the same point, before the group sums gradients. Fills in
// `rules`, which the group's chooser reads: the chooser must be ChooserFrom(rules). An error of
// rank 0, such as an unreadable file, is returned on all ranks. `device_sum`: sums the gradients in
// place of the group; null: none.
absl::StatusOr<DenseTuning> TuneGroup(const job::ResolvedJob& plan, int64_t gradient_bytes,
                                      absl::Span<const int> host_of_rank, collectives::Group& group,
                                      collectives::ChooserRules* rules,
                                      const DeviceSum* device_sum = nullptr);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_TUNE_GROUP_H_
