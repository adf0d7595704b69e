// Expands the file names of a job: environment variables, the home folder and wildcards.
#ifndef TANDEM_DATA_FILES_H_
#define TANDEM_DATA_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "proto/wire.pb.h"

namespace tandem::data {

// The error for a file of the job that cannot be opened; `error` is errno. NOT_FOUND, with a hint
// if the path may be wrong, or PERMISSION_DENIED. `what`: the start of the message, for example
// "cannot open".
absl::Status CannotOpen(absl::string_view what, int error);

// The path that a name in the job stands for, still with its wildcards: $NAME and ${NAME} are
// environment variables, and ~/ is the home folder. The name of a file or folder that exists is
// used as it is. If only the folder before the last slash exists, the rest is expanded.
// INVALID_ARGUMENT if a variable, or HOME for ~/, is not set.
absl::StatusOr<std::string> ExpandName(const std::string& name);

// The files that a pattern stands for (ExpandName, and the wildcards of glob(3)), in the byte order
// of their names, so that every node lists them in the same order. A file or folder that has
// exactly this name comes before its meaning as a pattern. NOT_FOUND, with a hint, if there is no
// such file; INVALID_ARGUMENT if one of them is a directory or no regular file. `knob` is the field
// of the job, for messages.
//
// Wildcards skip names that begin with _, such as _SUCCESS and _metadata, unless the pattern itself
// begins with _. Skipped names are added to `hidden`, if given.
//
// An address (scheme://...), which only Parquet files have, takes variables and, in its last part,
// wildcards.
absl::StatusOr<std::vector<std::string>> ExpandFiles(absl::string_view knob,
                                                     absl::string_view pattern,
                                                     std::vector<std::string>* hidden = nullptr);

// The same for several patterns, in their order.
absl::StatusOr<std::vector<std::string>> ExpandAllFiles(absl::string_view knob,
                                                        const std::vector<std::string>& patterns,
                                                        std::vector<std::string>* hidden = nullptr);

// Whether one of the patterns names the file itself, without wildcards.
bool IsNamed(const std::vector<std::string>& patterns, absl::string_view file);

// The files that a job reads first: the training files or, for a job that only scores rows, the
// files to score.
absl::StatusOr<std::vector<std::string>> FirstFiles(const Data& data);

// The files of data.train, data.validation.files and data.test, in this order, each once.
absl::StatusOr<std::vector<std::string>> FilesOfRows(const Data& data);

// Tells whether a file still has the contents that it had before.
struct FileStamp {
  int64_t bytes = -1, written_s = 0, written_ns = 0;  // bytes -1: there is no file
  uint64_t inode = 0;
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};
FileStamp StampOf(const std::string& file);

// The training files of a run, for its checkpoints. None if a program brings the data. Reads up to
// 1 MiB of each file: its sample are all bytes of a file that is not longer, otherwise pieces that
// are evenly spread over the file, the first and the last bytes among them.
absl::StatusOr<std::vector<DataFile>> TrainingFiles(const Data& data);

// A hash of the stamps of the training files, for other processes on this host that read the same
// files; 0: a program brings the data.
absl::StatusOr<uint64_t> HashTrainingFiles(const Data& data);
// FAILED_PRECONDITION if the training files had another hash before. The error names the file that
// was written last. `was`: 0 if it is not known; then the files are not checked.
absl::Status CheckTrainingFilesUnchanged(uint64_t was, const Data& data);

// FAILED_PRECONDITION if a resumed run would not train on the files that it began with: the name,
// the length or the sample of a file (of an address: its time of change) is another one. The error
// names the first file that differs. `was`: the record of the run. `warnings` gets a line for each
// file that was written since, though the sample is the same; null: no warnings.
absl::Status CheckSameFiles(const RunRecord& was, const Data& data,
                            std::vector<std::string>* warnings = nullptr);
// Sets data->deal() to the deal of a run that is resumed. FAILED_PRECONDITION if the job names
// another one.
absl::Status AdoptDeal(const RunRecord& was, Data* data);

}  // namespace tandem::data

#endif  // TANDEM_DATA_FILES_H_
