// Click logs of any size in the Criteo text format, labelled by a PlantedModel: data on which the
// best reachable quality is known.
#ifndef TANDEM_DATA_DATAGEN_H_
#define TANDEM_DATA_DATAGEN_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/planted.h"

namespace tandem::data {

struct DatagenOptions {
  std::string train;  // files to write; gzip if a name ends in ".gz"
  std::string test;
  std::string report;  // what DatagenReport holds, as JSON; default: `train` + ".json"
  int64_t train_rows = 1'000'000;
  int64_t test_rows = 100'000;
  uint64_t seed = 1;
  double skew = kPlantedExponent;  // exponent of Zipf's law, which the ids follow; 0: all are alike
};

// What `skew` may be at most: beyond it a field has little more than one id.
inline constexpr double kMostSkew = 4;

// An id or pair counts as knowable once the training rows have shown it this often.
inline constexpr uint32_t kKnowableSightings = 20;

struct DatagenReport {
  int64_t train_rows = 0, test_rows = 0;
  uint64_t seed = 0;
  double skew = 0;
  double positive_share = 0;  // of the training rows
  // Both on the test part: of the planted model itself, and of the planted model with the effects
  // of ids and pairs seen fewer than kKnowableSightings times in training set to zero.
  double planted_auc = 0;
  double attainable_auc = 0;
};

// Writes the three files, each under a temporary name first, so that a name never holds half a
// file, and prints the figures of the report to `log`. The bytes depend on the options alone;
// memory does not depend on the number of rows (up to 10^7 test rows are kept as scores for an
// exact AUC). INVALID_ARGUMENT for options that make no sense, else the error of the file system,
// with the path.
absl::StatusOr<DatagenReport> MakeCriteo(const DatagenOptions& options, std::ostream& log);
absl::Status GenerateCriteo(const DatagenOptions& options, std::ostream& log);

}  // namespace tandem::data

#endif  // TANDEM_DATA_DATAGEN_H_
