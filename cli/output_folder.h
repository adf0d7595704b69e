// The folder that a run writes into. One run has it at a time, and what an earlier one left there is
// not lost by accident.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_OUTPUT_FOLDER_H_
#define TANDEM_CLI_OUTPUT_FOLDER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

// In the folder of a run that records its order: the model that it began with, if it did.
inline constexpr char kStartFile[] = "start.json";

// "out/NAME-20260131-142501-PROCESS": for a run of job `name` that was given no folder.
std::string NewFolderName(absl::string_view name);

class OutputFolder {
 public:
  // May a run begin in `path`? FAILED_PRECONDITION if another process has the folder, and, unless
  // `overwrite`, if a finished run or a saved model is in it. Changes nothing.
  static absl::Status Check(const std::string& path, bool overwrite);

  // Makes the folder if it is not there, checks it, and has it until this object or its process ends,
  // however it ends (flock): the file `lock` in it says whose it is. A role whose parent has it
  // already shares it.
  static absl::StatusOr<OutputFolder> Claim(const std::string& path, bool overwrite);

  // Removes what earlier runs left; their model stays if `keep_model`.
  void Clear(bool keep_model) const;
  // Removes what the run left that goes on there and that it will write anew at its end.
  void ClearForResume() const;

  // Another process (tandem run) has made it ready.
  bool shared() const { return fd_ < 0; }

  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

 private:
  OutputFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;  // of the lock; -1: our parent's
};

// Is `path` in `folder`, or the folder itself?
bool IsInside(const std::string& path, const std::string& folder);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_OUTPUT_FOLDER_H_
