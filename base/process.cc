#include "base/process.h"

#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __linux__
#include <sched.h>
#endif

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/owned_fd.h"

namespace tandem {
namespace {

void OpenStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // open() takes the lowest free number, which is `fd`. The root folder exists in every chroot.
    if (open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY) < 0) (void)open("/", O_RDONLY);
  }
}

bool IsDefault(int signal) {
  struct sigaction now = {};
  return sigaction(signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
         now.sa_handler == SIG_DFL;
}

}  // namespace

void SetUpProcess() {
  OpenStandardDescriptors();
#ifdef __GLIBC__
  // The largest value that glibc takes: larger blocks are still mapped one by one.
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
  (void)mallopt(M_TOP_PAD, 16 << 20);  // step by which the heap grows
#endif
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  (void)signal(SIGCHLD, SIG_DFL);
  if (IsDefault(SIGUSR1)) (void)signal(SIGUSR1, SIG_IGN);
  sigset_t checkpoint;
  sigemptyset(&checkpoint);
  sigaddset(&checkpoint, SIGUSR1);
  (void)pthread_sigmask(SIG_UNBLOCK, &checkpoint, nullptr);
}

std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::optional<int> WaitForEnd(pid_t child) {
  int status = 0;
  for (;;) {
    if (waitpid(child, &status, 0) == child) return status;
    if (errno != EINTR) return std::nullopt;
  }
}

absl::Status CheckDescriptorsLeft(int count) {
  std::vector<OwnedFd> taken;
  while (static_cast<int>(taken.size()) < count) {
    taken.emplace_back(open("/", O_RDONLY | O_CLOEXEC));
    if (taken.back().valid()) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "no room for ", count, " more descriptors: ", std::strerror(errno), "; hint: ulimit -n"));
  }
  return absl::OkStatus();
}

absl::Status StayOnProcessors(int first, int count) {
  TANDEM_CHECK(first >= 0 && count >= 1);
#ifdef __linux__
  cpu_set_t allowed, wanted;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return absl::UnavailableError(
        absl::StrCat("processors are not known: error ", errno, " of sched_getaffinity"));
  }
  std::vector<size_t> processors;
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) processors.push_back(cpu);
  }
  CPU_ZERO(&wanted);
  for (int i = 0; i < count; ++i) {
    CPU_SET(processors[static_cast<size_t>(first + i) % processors.size()], &wanted);
  }
  if (sched_setaffinity(0, sizeof wanted, &wanted) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot stay on processors: error ", errno, " of sched_setaffinity"));
#else
  return absl::UnavailableError("cannot stay on processors: not on this system");
#endif
}

}  // namespace tandem
