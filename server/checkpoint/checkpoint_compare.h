// Compares the models of two checkpoints bit for bit: rows, optimizer slots and dense parameters.
// Does not compare what belongs to a run: its time, the progress of workers, the state of programs.
//
// Thread safety: any thread.
#ifndef TANDEM_SERVER_CHECKPOINT_CHECKPOINT_COMPARE_H_
#define TANDEM_SERVER_CHECKPOINT_CHECKPOINT_COMPARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::server {

struct ModelComparison {
  int64_t ranges = 0;     // that both checkpoints have; a file of dense parameters counts as one
  int64_t rows = 0;       // in these
  uint64_t checksum = 0;  // of the bits of `a`: XXH3 over keys, weights and slots, range by range
  // One line for each range that differs, or that one of them lacks.
  std::vector<std::string> differences;
};
// Compares the same ranges, so the jobs must have cut their tables in the same way.
absl::StatusOr<ModelComparison> CompareModels(const CheckpointReader& a, const CheckpointReader& b);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_CHECKPOINT_COMPARE_H_
