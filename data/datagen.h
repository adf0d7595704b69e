// Generates click logs of any size in the Criteo text format, labelled by a PlantedModel. The best
// reachable quality on such data is known.
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
  std::string train;  // training file; gzip if the name ends in ".gz"
  std::string test;
  std::string report;  // DatagenReport as JSON; default: `train` + ".json"
  int64_t train_rows = 1'000'000;
  int64_t test_rows = 100'000;
  uint64_t seed = 1;
  // Exponent of Zipf's law for the ids; 0: all are equally frequent.
  double skew = kPlantedExponent;
};

// The largest `skew`. Beyond it a field has little more than one id.
inline constexpr double kMaxSkew = 4;

// An id or pair counts as knowable if the training rows show it at least this often.
inline constexpr uint32_t kKnowableSightings = 20;

struct DatagenReport {
  int64_t train_rows = 0, test_rows = 0;
  uint64_t seed = 0;
  double skew = 0;
  double positive_share = 0;  // share of the training rows
  // Both AUCs are on the test rows: that of the planted model itself, and that of the planted model
  // without the effects of ids and pairs that were seen fewer than kKnowableSightings times in
  // training.
  double planted_auc = 0;
  double attainable_auc = 0;
};

// Writes the three files and prints the figures of the report to `log`. Each file has a temporary
// name until it is complete, so that a name never holds half a file. The bytes depend on the
// options alone. Memory does not depend on the number of rows (up to 10^7 test rows are kept as
// scores for an exact AUC). INVALID_ARGUMENT for invalid options, else the error of the file
// system, with the path.
absl::StatusOr<DatagenReport> MakeCriteo(const DatagenOptions& options, std::ostream& log);
absl::Status GenerateCriteo(const DatagenOptions& options, std::ostream& log);

}  // namespace tandem::data

#endif  // TANDEM_DATA_DATAGEN_H_
