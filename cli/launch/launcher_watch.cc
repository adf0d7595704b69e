#include "cli/launch/launcher_watch.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::cli {
namespace {

// Reads one byte if one comes within `milliseconds`. 0: none has come; -1: the end.
int ReadByte(int fd, int milliseconds, char* byte) {
  pollfd wait = {fd, POLLIN, 0};
  if (poll(&wait, 1, milliseconds) != 1) return 0;
  const ssize_t n = read(fd, byte, 1);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return n == 1 ? 1 : -1;
}

}  // namespace

void LauncherWatch::TakeToken() {
  constexpr size_t kMaxBytes = 4096;
  const absl::Time until = MonotonicNow() + absl::Seconds(10);
  std::string token;
  char byte = 0;
  while (lifeline_ >= 0 && token.size() < kMaxBytes) {
    const auto left = absl::ToInt64Milliseconds(until - MonotonicNow());
    if (left <= 0) break;
    const int got = ReadByte(lifeline_, static_cast<int>(left), &byte);
    if (got < 0 || (got > 0 && byte == '\n')) break;
    if (got > 0) token.push_back(byte);
  }
  if (!token.empty()) setenv("TANDEM_TOKEN", token.c_str(), 1);
}

void LauncherWatch::Check() {
  if (gone_) return;
  gone_ = parent_ != 0 && getppid() != parent_;
  char byte = 0;
  int got = 0;
  while (lifeline_ >= 0 && (got = ReadByte(lifeline_, 0, &byte)) == 1) {
    if (byte == 't') raise(SIGTERM);
    if (byte == 'u') raise(SIGUSR1);
  }
  gone_ = gone_ || got == -1;
  if (gone_) raise(SIGTERM);
}

}  // namespace tandem::cli
