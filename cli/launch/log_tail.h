// Follows a file that another process writes, and returns its new lines. `tandem run` shows what
// scripts print in this way.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_LOG_TAIL_H_
#define TANDEM_CLI_LAUNCH_LOG_TAIL_H_

#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"

namespace tandem::cli {

class LogTail {
 public:
  static constexpr size_t kMaxLines = 200;   // of one Read
  static constexpr size_t kMaxBytes = 2000;  // of a line; the rest of a longer one is left out

  // The file need not exist yet. `name`: of the process.
  LogTail(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {}

  // Passes over what the file has now, such as the lines of an earlier attempt.
  void SkipExisting();

  // The whole lines since the last call, each after the last carriage return in it: a progress bar
  // rewrites its line. Beyond kMaxLines, a line says how many lines are left out.
  // `last`: the process has ended. Also returns what follows the last line end.
  std::vector<std::string> Read(bool last = false);

  const std::string& name() const { return name_; }

 private:
  void Add(char c, std::vector<std::string>* lines);
  void AddLine(std::vector<std::string>* lines);

  const std::string name_, path_;
  OwnedFd file_;
  std::string line_;       // an unfinished line
  bool returned_ = false;  // a carriage return came last
  size_t left_out_ = 0;    // lines of this Read
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_LOG_TAIL_H_
