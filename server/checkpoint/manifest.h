// The manifest of a checkpoint: its ranges with their places in files, lengths, row counts and
// checksums, and its model. The manifest is written when all files are on the disk. So a folder
// with a manifest is a whole checkpoint, and a folder without one is not a checkpoint.
//
// The manifest is a JSON file, so that people and other programs can read it. Its last field is a
// checksum of everything before it.
#ifndef TANDEM_SERVER_CHECKPOINT_MANIFEST_H_
#define TANDEM_SERVER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::server {

// One range, or one part of a worker, in the format of range_file.md. A segment has many
// of them (segment_file.h); any other file is one.
struct CheckpointFile {
  std::string name;  // name of the file in the folder of the checkpoint
  std::string table;
  uint64_t begin = 0, end = 0;  // positions, end 0 = 2^64; both 0 for the dense part
  uint64_t bytes = 0;
  int64_t rows = -1;      // -1: unknown (manifests of earlier versions)
  uint64_t checksum = 0;  // the one at the end of these bytes
  uint64_t offset = 0;    // in the file

  friend bool operator==(const CheckpointFile&, const CheckpointFile&) = default;
};

struct CheckpointTable {
  std::string name;
  uint64_t salt = 0;  // for Position(), which gives the file of a row
  int64_t dim = 0;
  std::vector<std::string> fields;  // fields that read the table; empty for dense tables
  std::string initializer;          // as text; for rows that the files lack
  std::string optimizer;            // RowOptimizer::name()
  // The message Optimizer as text, if rows make up for missed steps (RowOptimizer::catches_up): a
  // reader of the weights needs it. Empty for all other optimizers.
  std::string catch_up;
  // The types of the rows, such as BF16; "F32" in manifests of earlier versions.
  std::string row_dtype = "F32", state_dtype = "F32";
  std::string hot_dtype;  // of hot rows; empty: no row becomes hot

  friend bool operator==(const CheckpointTable&, const CheckpointTable&) = default;
};

// One dense parameter, with its name in the model's interface (models/model.h).
struct CheckpointParameter {
  std::string name;
  std::vector<int64_t> shape;

  friend bool operator==(const CheckpointParameter&, const CheckpointParameter&) = default;
};

struct Manifest {
  uint64_t run = 0;       // View.run
  std::string job;        // name of the job
  uint64_t job_hash = 0;  // ResolvedJob::hash
  int64_t step = 0;       // the checkpoint has all steps before this one
  int64_t attempt = 0;    // how often the run had been resumed
  bool best = false;      // model of the best evaluation so far (train.keep_best)
  // The rest gives the numbers their meaning. checkpoint_check.h compares it with a job.
  uint64_t seed = 0;      // for initial values
  std::string model;      // Job.model, as text
  std::string optimizer;  // RowOptimizer::name() of the dense parameters
  std::string data;       // DescribeData()
  std::string hashing;    // of ids: kKeyHashing
  std::vector<CheckpointTable> tables;
  std::vector<CheckpointParameter> dense;  // in the order of the flat buffer
  std::vector<CheckpointFile> files;       // sorted by table, then by begin, then by name

  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// prefix of checkpoint folders in a model folder
inline constexpr char kCheckpointFolderPrefix[] = "step-";
inline constexpr char kBestSuffix[] = ".best";  // of checkpoint folders with Manifest::best

// The folder for the checkpoint of `step`. No other run and no other checkpoint of this run has the
// same name. `attempt` is Manifest::attempt. `request` distinguishes checkpoints requested during
// the job (0: the checkpoint at the end).
std::string CheckpointFolder(absl::string_view model_folder, uint64_t run, int64_t step,
                             uint64_t request, int64_t attempt = 0);

std::string EncodeManifest(const Manifest& manifest);
// DATA_LOSS or INVALID_ARGUMENT for text that EncodeManifest did not write. The message does not
// name the file.
absl::StatusOr<Manifest> ParseManifest(absl::string_view text);

// The order of Manifest::files.
void SortFiles(std::vector<CheckpointFile>* files);

// "[0x0, 2^64)".
std::string PositionsText(uint64_t begin, uint64_t end);
// "table items, positions [0x0, 2^64)", or the name of a worker's part.
std::string DebugString(const CheckpointFile& file);
// True for a file that a worker wrote: dense parameters, states, the run record. No range of a
// server.
bool IsWorkerPart(const CheckpointFile& file);
inline constexpr char kWorkerPartSuffix[] = ".part";

// "top.0.weight [16, 8]"
std::string DebugString(const CheckpointParameter& parameter);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_MANIFEST_H_
