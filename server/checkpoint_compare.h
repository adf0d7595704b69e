// Compares the models of two checkpoints bit for bit: rows, optimizer slots and dense parameters.
// Does not compare what belongs to a run: its time, the progress of workers, the state of programs.
//
// Thread safety: any thread.
#ifndef TANDEM_SERVER_CHECKPOINT_COMPARE_H_
#define TANDEM_SERVER_CHECKPOINT_COMPARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint_directory.h"

namespace tandem::server {

struct ModelComparison {
  int64_t files = 0;      // files of rows or dense parameters that both checkpoints have
  int64_t rows = 0;       // in those files
  uint64_t checksum = 0;  // of the bits of `a`: XXH3 over keys, weights and slots, file by file
  // One line for each file that differs, or that one of them lacks.
  std::vector<std::string> differences;
};
// Compares files of the same name, so the jobs must have cut their tables into the same ranges.
absl::StatusOr<ModelComparison> CompareModels(const CheckpointReader& a, const CheckpointReader& b);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_COMPARE_H_
