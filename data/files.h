// From the names in a job file to files: environment variables and globs.
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

// The error for a file of the job that cannot be opened; `error` is errno. NOT_FOUND, with a hint if
// the path may be wrong, or PERMISSION_DENIED. `what`: for example "cannot open".
absl::Status CannotOpen(absl::string_view what, int error);

// Replaces $NAME and ${NAME} by the environment. INVALID_ARGUMENT if a variable is not set.
absl::StatusOr<std::string> ExpandEnvironment(absl::string_view path);

// The files that a pattern ($NAME, ${NAME}, ~/, and the wildcards of glob(3)) stands for, in the byte
// order of their names: every node lists them in the same order. A file or folder that has the name as
// it stands comes before what the name means as a pattern. NOT_FOUND, with a hint, if there is none;
// INVALID_ARGUMENT if one is a directory or no regular file. `knob` is the field of the job, for messages.
//
// Wildcards skip names that begin with _, such as _SUCCESS and _metadata, unless the pattern begins with
// it. Skipped names are added to `hidden`, if given.
absl::StatusOr<std::vector<std::string>> ExpandFiles(absl::string_view knob,
                                                     absl::string_view pattern,
                                                     std::vector<std::string>* hidden = nullptr);

// As above for several patterns, in their order.
absl::StatusOr<std::vector<std::string>> ExpandAllFiles(absl::string_view knob,
                                                        const std::vector<std::string>& patterns,
                                                        std::vector<std::string>* hidden = nullptr);

// Whether one of the patterns names the file itself, and not by wildcards.
bool IsNamed(const std::vector<std::string>& patterns, absl::string_view file);

// The files whose rows a job reads first: those to train on or, of a job that names none and only scores
// rows, those to score.
absl::StatusOr<std::vector<std::string>> FirstFiles(const Data& data);

// What a run trains on, for its saves. None for the data of a program.
absl::StatusOr<std::vector<DataFile>> TrainingFiles(const Data& data);
// That a run which goes on has the files that it began with: FAILED_PRECONDITION names the first
// that differs. `was`: of RunRecord.
absl::Status CheckSameFiles(const RunRecord& was, const Data& data);

}  // namespace tandem::data

#endif  // TANDEM_DATA_FILES_H_
