#include "cli/launch/log_tail.h"

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {
constexpr int kMaxReads = 64;
}  // namespace

void LogTail::SkipExisting() {
  file_ = OwnedFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (file_.valid()) lseek(file_.get(), 0, SEEK_END);
}

std::vector<std::string> LogTail::Read(bool last) {
  std::vector<std::string> lines;
  left_out_ = 0;
  if (!file_.valid()) file_ = OwnedFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file_.valid()) return lines;
  char bytes[65536];
  // Bounded while the process runs, because it may write faster than this one reads.
  for (int reads = 0; last || reads < kMaxReads; ++reads) {
    const ssize_t n = read(file_.get(), bytes, sizeof bytes);
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) Add(bytes[i], &lines);
  }
  if (last && !line_.empty()) AddLine(&lines);
  if (left_out_ > 0) lines.push_back(absl::StrCat("(", left_out_, " more lines in ", path_, ")"));
  return lines;
}

void LogTail::Add(char c, std::vector<std::string>* lines) {
  if (c == '\n') return AddLine(lines);
  if (returned_) line_.clear();
  returned_ = c == '\r';
  if (!returned_ && line_.size() < kMaxBytes) line_.push_back(c);
}

void LogTail::AddLine(std::vector<std::string>* lines) {
  if (lines->size() < kMaxLines) {
    lines->push_back(std::move(line_));
  } else {
    ++left_out_;
  }
  line_.clear();
  returned_ = false;
}

}  // namespace tandem::cli
