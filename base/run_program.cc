#include "base/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/owned_fd.h"

namespace tandem {
namespace {

// Our environment with the variables of the call.
std::vector<std::string> EnvironmentOf(const ProgramCall& call) {
  std::vector<std::string> all;
  for (const auto& [name, value] : call.environment) {
    all.push_back(absl::StrCat(name, "=", value));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view name = absl::string_view(*entry).substr(0, std::strcspn(*entry, "="));
    const bool replaced = std::any_of(call.environment.begin(), call.environment.end(),
                                      [name](const auto& added) { return added.first == name; });
    if (!replaced) all.emplace_back(*entry);
  }
  return all;
}

std::vector<char*> PointersTo(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Standard input with this text; invalid: no memory for it.
OwnedFd InputOf(absl::string_view text) {
  if (text.empty()) return OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  OwnedFd fd(memfd_create("tandem", MFD_CLOEXEC));
  while (fd.valid() && !text.empty()) {
    const ssize_t n = write(fd.get(), text.data(), text.size());
    if (n <= 0) return OwnedFd();
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (fd.valid()) lseek(fd.get(), 0, SEEK_SET);
  return fd;
}

// Appends bytes to `text` until the writers close the pipe; false if the deadline comes first.
bool ReadAll(int fd, absl::Time deadline, std::string* text) {
  char bytes[4096];
  for (;;) {
    pollfd readable = {fd, POLLIN, 0};
    const absl::Duration left = deadline - MonotonicNow();
    if (left <= absl::ZeroDuration()) return false;
    const auto wait = absl::ToInt64Milliseconds(std::min(left, absl::Seconds(1))) + 1;
    if (poll(&readable, 1, static_cast<int>(wait)) <= 0) continue;
    const ssize_t n = read(fd, bytes, sizeof bytes);
    if (n == 0) return true;
    if (n > 0) text->append(bytes, static_cast<size_t>(n));
    if (n < 0 && errno != EINTR) return true;
  }
}

// Waits for the end of the child; false if the deadline comes first.
bool Reap(pid_t child, absl::Time deadline, int* status) {
  for (;;) {
    int ended = 0;
    const pid_t found = waitpid(child, &ended, WNOHANG);
    if (found == child) {
      *status = WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
      return true;
    }
    if (found < 0 && errno != EINTR) return true;  // other code took the status
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace

ProgramResult RunProgram(const ProgramCall& call) {
  ProgramResult result;
  std::vector<std::string> words = call.argv, variables = EnvironmentOf(call);
  const std::vector<char*> argv = PointersTo(words), environment = PointersTo(variables);
  const OwnedFd input = InputOf(call.input);
  int out[2] = {-1, -1}, started[2] = {-1, -1};
  if (!input.valid() || pipe2(out, O_CLOEXEC) != 0 || pipe2(started, O_CLOEXEC) != 0) {
    result.not_started = errno;
  }
  OwnedFd reader(out[0]), writer(out[1]), error_reader(started[0]), error_writer(started[1]);
  if (result.not_started != 0) return result;
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // the parent died in between
    setpgid(0, 0);
    const int errors = call.with_errors ? writer.get() : open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(input.get(), STDIN_FILENO);
    dup2(writer.get(), STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    if (call.network < 0 || setns(call.network, CLONE_NEWNET) == 0) {
      execvpe(argv[0], argv.data(), environment.data());
    }
    const int error = errno;
    (void)!write(error_writer.get(), &error, sizeof error);
    _exit(127);
  }
  if (child < 0) {
    result.not_started = errno;
    return result;
  }
  setpgid(child, child);  // also here: the parent may kill the group before the child runs
  writer = OwnedFd();
  error_writer = OwnedFd();
  // The pipe closes when the program starts, so the read is short.
  int error = 0;
  if (read(error_reader.get(), &error, sizeof error) == sizeof error) result.not_started = error;
  const absl::Time deadline = MonotonicNow() + call.limit;
  result.timed_out =
      !ReadAll(reader.get(), deadline, &result.output) || !Reap(child, deadline, &result.status);
  if (result.timed_out) {
    kill(-child, SIGKILL);
    (void)Reap(child, absl::InfiniteFuture(), &result.status);
  }
  if (result.not_started != 0) result.status = ProgramResult::kUnknown;
  return result;
}

std::string ScriptInterpreter() {
  const char* const named = std::getenv("TANDEM_PYTHON");
  return named == nullptr || *named == '\0' ? "python3" : named;
}

}  // namespace tandem
