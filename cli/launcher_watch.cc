#include "cli/launcher_watch.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

namespace tandem::cli {
namespace {

// Reads one byte if one comes within `milliseconds`. 0: none has come; -1: the end.
int ReadByte(int fd, int milliseconds, char* byte) {
  pollfd wait = {fd, POLLIN, 0};
  if (poll(&wait, 1, milliseconds) != 1) return 0;
  return read(fd, byte, 1) == 1 ? 1 : -1;
}

}  // namespace

void LauncherWatch::TakeToken() {
  constexpr size_t kMostBytes = 4096;
  constexpr int kWaitMs = 10000;
  std::string token;
  char byte = 0;
  while (lifeline_ >= 0 && token.size() < kMostBytes) {
    if (ReadByte(lifeline_, kWaitMs, &byte) != 1 || byte == '\n') break;
    token.push_back(byte);
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
