// Checks whether a job may start from a checkpoint: compares everything that gives the checkpoint's
// numbers their meaning with the job.
#ifndef TANDEM_SERVER_CHECKPOINT_CHECKPOINT_CHECK_H_
#define TANDEM_SERVER_CHECKPOINT_CHECKPOINT_CHECK_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "job/job.h"
#include "server/checkpoint/manifest.h"

namespace tandem::server {

// Fills in seed, model, optimizer, data, hashing and tables.
void DescribeMeaning(const job::ResolvedJob& plan, Manifest* manifest);

// CheckpointTable::catch_up of a table with this optimizer.
std::string CatchUpText(const Optimizer& optimizer);

// The differences, one line each: the value in the job, the value in the checkpoint, and a hint.
struct CheckpointFit {
  std::vector<std::string> refused;  // errors: the numbers would change their meaning
  std::vector<std::string> said;     // notes: differences that a job which trains further may have
};

// `only`: load these tables only; empty: load the whole checkpoint. `has_rows`: whether a file of
// the checkpoint has a row of this table. A table that was always frozen has none.
CheckpointFit CompareCheckpoint(const Manifest& saved, const job::ResolvedJob& plan,
                                const std::vector<std::string>& only,
                                absl::FunctionRef<bool(const std::string& table)> has_rows);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_CHECKPOINT_CHECK_H_
