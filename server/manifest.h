// The manifest of a save: which files belong to it, of which bytes, and whose model they are. It is
// written when all of them are on the disk, so a folder with a manifest is a whole save, and a
// folder without one is none.
//
// As a file it is JSON, so that people and other programs can read it. Its last field is a checksum
// of all that stands before.
#ifndef TANDEM_SERVER_MANIFEST_H_
#define TANDEM_SERVER_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::server {

// One file in the format of range_file.md.
struct SavedFile {
  std::string name;  // in the folder of the save
  std::string table;
  uint64_t begin = 0, end = 0;  // positions, end 0 = 2^64; of the dense part both 0
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // that the file ends with

  friend bool operator==(const SavedFile&, const SavedFile&) = default;
};

struct SavedTable {
  std::string name;
  uint64_t salt = 0;  // of Position(): files are cut by positions under it
  int64_t dim = 0;
  std::vector<std::string> fields;  // that read it; none of dense tables
  std::string initializer;          // of rows that nobody has touched, as text
  std::string optimizer;            // RowOptimizer::name()

  friend bool operator==(const SavedTable&, const SavedTable&) = default;
};

// One dense parameter, as the model's border names it (models/model.h).
struct SavedParameter {
  std::string name;
  std::vector<int64_t> shape;

  friend bool operator==(const SavedParameter&, const SavedParameter&) = default;
};

struct Manifest {
  uint64_t run = 0;       // View.run
  std::string job;        // its name
  uint64_t job_hash = 0;  // JobPlan::hash
  int64_t step = 0;       // the steps before it are in the save
  int64_t attempt = 0;    // how often the run had gone on from a save
  bool best = false;      // of the best evaluation so far (train.keep_best)
  // What gives the numbers their meaning (save_check.h compares it with a job).
  uint64_t seed = 0;      // of first values
  std::string model;      // Job.model, as text
  std::string optimizer;  // RowOptimizer::name() of the dense parameters
  std::string data;       // DescribeData()
  std::string hashing;    // of ids: kKeyHashing
  std::vector<SavedTable> tables;
  std::vector<SavedParameter> dense;  // in the order of the flat buffer
  std::vector<SavedFile> files;       // by name

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

inline constexpr char kSaveFolderPrefix[] = "step-";  // of the names of saves in a model folder
inline constexpr char kBestSuffix[] = ".best";        // ... and of those with Manifest::best

// Where the save of `step` goes: a name that no other run has, and no other save of this run: `attempt`
// is Manifest::attempt, and `request` tells apart those that were asked for in the middle (0: the
// save at the end).
std::string SaveFolder(absl::string_view model_folder, uint64_t run, int64_t step, uint64_t request,
                       int64_t attempt = 0);

std::string EncodeManifest(const Manifest& manifest);
// DATA_LOSS or INVALID_ARGUMENT for text that EncodeManifest did not write; the message does not
// name the file.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

// "top.0.weight [16, 8]"
std::string DebugString(const SavedParameter& parameter);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_MANIFEST_H_
