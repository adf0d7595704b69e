#include "cli/launch/children.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/owned_fd.h"
#include "node/log.h"

namespace tandem::cli {

namespace {
constexpr size_t kLogLines = 5;  // of a process that has ended

// Kills the process group of a child that has been killed or has failed. Call it before waitpid(),
// which lets the system use the number of the group again.
void KillGroupOfFailed(pid_t child) {
  siginfo_t info = {};
  const int options = WEXITED | WNOHANG | WNOWAIT;
  if (waitid(P_PID, static_cast<id_t>(child), &info, options) != 0 || info.si_pid != child) return;
  if (info.si_code != CLD_EXITED || info.si_status != 0) kill(-child, SIGKILL);
}

}  // namespace

std::vector<std::string> LastLines(const std::string& path) {
  if (path.empty()) return {};
  constexpr std::streamoff kMaxBytes = 8192;
  std::ifstream file(path, std::ios::ate | std::ios::binary);
  file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kMaxBytes));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!absl::StripAsciiWhitespace(line).empty()) lines.push_back(line);
  }
  return lines;
}

std::string Children::Exit::HowItEnded() const {
  if (signal != 0)
    return absl::StrCat("was ended by signal ", signal, " (", strsignal(signal), ")");
  if (code == kUnknown) return "ended (its exit status is not known)";
  return absl::StrCat("exited with status ", code);
}

std::string Children::Exit::DebugString() const {
  return absl::StrCat(name, " (pid ", pid, ") ", HowItEnded());
}

Children::~Children() { StopAll(absl::ZeroDuration()); }

absl::Status Children::Start(const Command& command) {
  std::vector<char*> args;
  for (const std::string& arg : command.argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  OwnedFd log;
  if (!command.log.empty()) {
    // No link: the owner of the folder may have put it there.
    constexpr int kHow = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
    log = OwnedFd(open(command.log.c_str(), kHow, 0644));
  }
  if (!command.log.empty() && !log.valid()) {
    return absl::PermissionDeniedError(
        absl::StrCat(command.log, ": cannot be written: ",
                     errno == ELOOP ? "it is a link; hint: remove it" : strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    const std::string why = strerror(errno);
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", command.name, ": ", why, "; ", ThreadLimitHint()));
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died in between
    setpgid(0, 0);                      // Ctrl-C reaches the driver, which ends the job in order
    signal(SIGUSR1, SIG_IGN);           // until the program installs its handler
    for (const auto& [key, value] : command.environment) setenv(key.c_str(), value.c_str(), 1);
    if (log.valid()) {
      dup2(log.get(), STDOUT_FILENO);
      dup2(log.get(), STDERR_FILENO);
    }
    const int input =
        command.stdin_fd >= 0 ? command.stdin_fd : open("/dev/null", O_RDONLY | O_CLOEXEC);
    dup2(input, STDIN_FILENO);
    // The namespace comes first: its descriptor may be 3, which the pipe takes.
    const bool there = command.network < 0 || setns(command.network, CLONE_NEWNET) == 0;
    const int pipe_fd = command.pipe_fd;
    if (pipe_fd == 3) fcntl(3, F_SETFD, 0);  // already descriptor 3: keep it open in the program
    if (pipe_fd >= 0 && pipe_fd != 3) dup2(pipe_fd, 3);
    if (there) execv(args[0], args.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", args[0], strerror(errno));
    _exit(127);
  }
  setpgid(pid, pid);  // also here: the group exists when this function returns
  running_.push_back({command.name, pid, command.log});
  return absl::OkStatus();
}

std::vector<Children::Exit> Children::Reap() {
  std::vector<Exit> exits;
  for (size_t i = 0; i < running_.size();) {
    KillGroupOfFailed(running_[i].pid);
    int status = 0;
    const pid_t ended = waitpid(running_[i].pid, &status, WNOHANG);
    const bool forgotten = ended < 0 && errno == ECHILD;  // SIGCHLD is ignored
    if (ended != running_[i].pid && !forgotten) {
      ++i;
      continue;
    }
    Exit exit;
    exit.name = running_[i].name;
    exit.pid = running_[i].pid;
    exit.log = running_[i].log;
    if (forgotten) {
      exit.code = Exit::kUnknown;
    } else if (WIFSIGNALED(status)) {
      exit.signal = WTERMSIG(status);
    } else if (WIFEXITED(status)) {
      exit.code = WEXITSTATUS(status);
    }
    exit.lines = LastLines(exit.log);
    const size_t surplus = exit.lines.size() - std::min(exit.lines.size(), kLogLines);
    exit.lines.erase(exit.lines.begin(), exit.lines.begin() + static_cast<std::ptrdiff_t>(surplus));
    for (std::string& line : exit.lines) line = node::TextOfLogLine(line);
    exits.push_back(std::move(exit));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return exits;
}

bool Children::IsRunning(const std::string& name) const {
  return std::any_of(running_.begin(), running_.end(),
                     [&name](const Child& child) { return child.name == name; });
}

std::vector<std::string> Children::Running(absl::string_view prefix) const {
  std::vector<std::string> names;
  for (const Child& child : running_) {
    if (absl::StartsWith(child.name, prefix)) names.push_back(child.name);
  }
  return names;
}

void Children::Signal(int signal) {
  for (const Child& child : running_) kill(child.pid, signal);
}

void Children::SignalOne(const std::string& name, int signal) {
  for (const Child& child : running_) {
    if (child.name == name) kill(child.pid, signal);
  }
}

std::string Children::WhoDoesNotEnd() const {
  std::string names;
  for (const Child& child : running_) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", child.name, " (pid ", child.pid, ")");
  }
  return absl::StrCat("waiting for ", names,
                      ": killed, but not ended; a process cannot end while it waits for a device "
                      "or a file system that does not answer");
}

std::vector<Children::Exit> Children::StopAll(absl::Duration grace, absl::Duration patience) {
  std::vector<Exit> all;
  const absl::Time deadline = MonotonicNow() + grace;
  absl::Time say_at = deadline + patience;
  Signal(SIGCONT);  // a stopped process cannot end
  if (grace > absl::ZeroDuration()) Signal(SIGTERM);
  while (running()) {
    for (Exit& exit : Reap()) all.push_back(std::move(exit));
    if (!running()) break;
    const absl::Time now = MonotonicNow();
    if (now >= deadline) Signal(SIGKILL);
    if (now >= say_at) {
      std::fprintf(stderr, "%s\n", WhoDoesNotEnd().c_str());
      say_at = absl::InfiniteFuture();
    }
    absl::SleepFor(absl::Milliseconds(10));
  }
  return all;
}

}  // namespace tandem::cli
