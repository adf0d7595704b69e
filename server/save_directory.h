// Saved models on disk. One save is one directory: a file per range (range_file.h), named by table and
// positions, and one for the dense part. `DIR/LATEST` names the newest complete save under DIR.
#ifndef TANDEM_SERVER_SAVE_DIRECTORY_H_
#define TANDEM_SERVER_SAVE_DIRECTORY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/range.h"

namespace tandem {

// Writes every range into `directory` (made if absent), each atomically.
absl::Status SaveRanges(const std::string& directory, const std::vector<Range*>& ranges);

// Fills the ranges with the rows of `save` (a save, or a directory with a LATEST). The files may have
// cut the table into other ranges. An error names the file: missing tables, gaps between files,
// another optimizer or dim, damage.
absl::Status LoadRanges(const std::string& save, const std::vector<Range*>& ranges);

absl::Status SaveDenseFile(const std::string& directory, absl::string_view bytes);
absl::StatusOr<std::string> DenseFilePath(const std::string& save);
absl::StatusOr<std::string> LoadDenseFile(const std::string& save);

// All files of `directory` (PARENT/step-N) are there: PARENT/LATEST names it from now on, and older
// saves beside it go.
absl::Status CommitSave(const std::string& directory);

// `path` itself if it holds a save, or the one that its LATEST names.
absl::StatusOr<std::string> ResolveSave(const std::string& path);

}  // namespace tandem

#endif  // TANDEM_SERVER_SAVE_DIRECTORY_H_
