// The folder that a run writes into. Only one run holds it at a time. A run does not remove the
// results of an earlier run by accident.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_CONSOLE_OUTPUT_FOLDER_H_
#define TANDEM_CLI_CONSOLE_OUTPUT_FOLDER_H_

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::cli {

// The file with the model that a run began with, in the folder of a run that records its order.
inline constexpr char kStartFile[] = "start.json";

// "out/NAME-20260131-142501-PROCESS": the folder of a run of job `name` without --out.
std::string NewFolderName(absl::string_view name);

// The summary.json in the folder of a run; null: there is none.
nlohmann::json ReadSummary(const std::string& folder);

class OutputFolder {
 public:
  // Checks whether a run may begin in `path`. FAILED_PRECONDITION if another process holds
  // the folder, or, without `overwrite`, if it contains a finished run or a checkpoint.
  // Changes nothing.
  static absl::Status Check(const std::string& path, bool overwrite);

  // Creates the folder if it is missing, checks it, and holds it until this object or its process
  // ends (flock). The file `lock` in it names the holder. A role whose parent holds the folder
  // shares it. PERMISSION_DENIED: another user could prepare files there, because the folder is a
  // link of another user, or belongs to another user and all users may write to it.
  static absl::StatusOr<OutputFolder> Claim(const std::string& path, bool overwrite);

  // Whether a process, on any host, holds the folder.
  static bool IsHeld(const std::string& path);

  // Removes the results of earlier runs; keeps their model if `keep_model`.
  void Clear(bool keep_model) const;
  // Removes the files that a resumed run writes again at its end.
  void ClearForResume() const;

  // Calls `write`, which writes files into the folder before the run starts. If the disk is full
  // (RESOURCE_EXHAUSTED), WriteInRoom removes incomplete checkpoints, which a killed run may have
  // left there, and calls `write` again.
  absl::Status WriteInRoom(const std::function<absl::Status()>& write) const;

  // Whether another process (tandem run) holds the folder and has prepared it.
  bool shared() const { return fd_ < 0; }

  OutputFolder(OutputFolder&& other) noexcept;
  OutputFolder& operator=(OutputFolder&&) = delete;
  ~OutputFolder();

 private:
  OutputFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::string path_;
  int fd_;  // of the lock; -1: the parent holds it
};

// Whether `path` is in `folder`, or is `folder` itself.
bool IsInside(const std::string& path, const std::string& folder);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_CONSOLE_OUTPUT_FOLDER_H_
