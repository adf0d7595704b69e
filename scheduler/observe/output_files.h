// The text files that a job writes to its output directory.
#ifndef TANDEM_SCHEDULER_OBSERVE_OUTPUT_FILES_H_
#define TANDEM_SCHEDULER_OBSERVE_OUTPUT_FILES_H_

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::scheduler {

// A file that grows by lines. Each line is given to the system at once, so that readers see it and
// a crash of the process loses none.
class LineFile {
 public:
  // Makes `dir` if absent. Empties the file or, if `append`, continues after its last whole line.
  static absl::StatusOr<std::unique_ptr<LineFile>> Create(const std::string& dir,
                                                          const std::string& name,
                                                          bool append = false);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // `line` without its newline. RESOURCE_EXHAUSTED if the disk is full.
  absl::Status Append(absl::string_view line);

 private:
  LineFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}
  std::FILE* const file_;
  const std::string path_;
  bool torn_ = false;  // the file ends within a line
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_OUTPUT_FILES_H_
