// Log is the log of a process: lines on standard error with time, level, role and rank, such as
//
//   2026-03-14 15:09:26.535 warning worker 1: a frame of 12 bytes is shorter than its header
//
// or, with `--log-format json`, JSON objects for programs that collect logs:
//
//   {"level":"warning","rank":1,"role":"worker","text":"...","time":"2026-03-14T14:09:26.535Z"}
//
// Code that logs makes a Log with its role and rank; there is no global log. Finish in role_flags.h
// prints what a command tells the person who typed it.
//
// Thread safety: any thread, copies too. Each line is written as a whole.
#ifndef TANDEM_NODE_LOG_H_
#define TANDEM_NODE_LOG_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace spdlog {
class logger;
}

namespace tandem::node {

// The environment variable with the format of logs, `text` or `json`. `--log-format` sets it, so
// that it holds for the whole process, and for the processes that it starts.
inline constexpr char kLogFormatVariable[] = "TANDEM_LOG_FORMAT";
bool LogsJson();
// The text of a line in JSON format; any other line is returned as it is.
std::string TextOfLogLine(const std::string& line);

class Log {
 public:
  // `role`: "scheduler", "server" or "worker". `rank`: of this process among those of its role; -1:
  // it has none, or none yet.
  explicit Log(const std::string& role, int rank = -1);

  void Info(absl::string_view line) const;
  void Warning(absl::string_view line) const;  // something is wrong; the job continues
  void Error(absl::string_view line) const;    // something that was requested was not done

 private:
  void Write(int level, absl::string_view line) const;

  std::string role_;
  int rank_;
  bool json_;
  std::shared_ptr<spdlog::logger> logger_;
};

// Limits log lines whose number other processes control: only the first kMax lines are written.
//
// Thread safety: none.
class BoundedLog {
 public:
  static constexpr int kMax = 100;
  void Warning(const Log& log, absl::string_view line);

 private:
  int written_ = 0;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_LOG_H_
