// Are the models of two saves the same, bit for bit? Of rows, slots of optimizers and dense parameters;
// not of what belongs to a run: when it was, who pushed how fast, what a program remembers.
//
// Any thread.
#ifndef TANDEM_SERVER_SAVE_COMPARE_H_
#define TANDEM_SERVER_SAVE_COMPARE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/save_directory.h"

namespace tandem::server {

struct ModelComparison {
  int64_t files = 0;      // that both saves have, rows and dense parameters
  int64_t rows = 0;       // in these
  uint64_t checksum = 0;  // of the bits of `a`: XXH3 over keys, weights and slots, file by file
  // One line each file that differs, or that one of them lacks.
  std::vector<std::string> differences;
};
// Files are compared by name: the jobs must have cut their tables into the same ranges.
absl::StatusOr<ModelComparison> CompareModels(const SavedModel& a, const SavedModel& b);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SAVE_COMPARE_H_
