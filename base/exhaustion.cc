#include "base/exhaustion.h"

#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace tandem {
namespace {

enum class Lack { kThreads, kMemory, kFiles };

const char* Name(Lack lack) {
  switch (lack) {
    case Lack::kThreads:
      return "cannot start a thread";
    case Lack::kMemory:
      return "out of memory";
    case Lack::kFiles:
      return "no more open files";
  }
  return "";
}

constexpr int kExitFailed = 1;  // node::kExitFailed
// More than a thread's stack, and more than the heap grows by at once.
constexpr size_t kProbeBytes = size_t{24} << 20;
// OpenBLAS asks for 128 MiB when it is loaded, and repeats that for ever if it gets none.
constexpr size_t kLibraryBytes = size_t{160} << 20;

// Reads a limit of this process; returns false if there is none.
bool HasLimit(__rlimit_resource resource, rlim_t* limit) {
  rlimit now = {};
  if (getrlimit(resource, &now) != 0 || now.rlim_cur == RLIM_INFINITY) return false;
  *limit = now.rlim_cur;
  return true;
}

// Writes "hint: ..." without the heap, which may be used up.
void WriteHint(Lack lack, char* out, size_t size) {
  const bool thread = lack == Lack::kThreads;
  rlim_t limit = 0;
  if (lack == Lack::kFiles) {
    HasLimit(RLIMIT_NOFILE, &limit);
    std::snprintf(out, size, "hint: raise ulimit -n, now %llu",
                  static_cast<unsigned long long>(limit));
  } else if (thread && geteuid() != 0 && HasLimit(RLIMIT_NPROC, &limit)) {
    std::snprintf(out, size, "hint: raise ulimit -u, now %llu for all processes of this user",
                  static_cast<unsigned long long>(limit));
  } else if (HasLimit(RLIMIT_AS, &limit)) {
    std::snprintf(out, size, "hint: raise ulimit -v, now %llu KiB%s",
                  static_cast<unsigned long long>(limit >> 10),
                  thread ? "; a thread needs its stack" : "");
  } else if (HasLimit(RLIMIT_DATA, &limit)) {
    std::snprintf(out, size, "hint: raise ulimit -d, now %llu KiB",
                  static_cast<unsigned long long>(limit >> 10));
  } else if (thread) {
    std::snprintf(out, size, "hint: raise pids.max of the container, or kernel.threads-max");
  } else {
    std::snprintf(out, size,
                  "hint: more memory for the container, or fewer processes on this host");
  }
}

// True if this process has nearly as many mappings as vm.max_map_count allows.
bool MappingsAreUsedUp(uint64_t* most) {
  uint64_t used = 0;
  std::ifstream limit("/proc/sys/vm/max_map_count"), maps("/proc/self/maps");
  if (!(limit >> *most)) return false;
  for (std::string line; std::getline(maps, line);) ++used;
  return used + used / 16 >= *most;
}

std::string Hint(Lack lack) {
  uint64_t most = 0;
  if (lack == Lack::kMemory && MappingsAreUsedUp(&most)) {
    return absl::StrCat("hint: raise vm.max_map_count, now ", most, ", or use more servers");
  }
  char text[160];
  WriteHint(lack, text, sizeof text);
  return text;
}

absl::Status Exhausted(Lack lack) {
  return absl::ResourceExhaustedError(absl::StrCat(Name(lack), "; ", Hint(lack)));
}

// True if an error number of the system means that memory, threads or files have run out.
bool IsLack(const std::error_code& error, Lack* lack) {
  const bool files =
      error == std::errc::too_many_files_open || error == std::errc::too_many_files_open_in_system;
  *lack = files                                   ? Lack::kFiles
          : error == std::errc::not_enough_memory ? Lack::kMemory
                                                  : Lack::kThreads;
  return *lack != Lack::kThreads || error == std::errc::resource_unavailable_try_again;
}

// The program's name. glibc does not know it before main(), so it may come from the kernel.
const char* ProgramName() {
  if (*program_invocation_short_name != '\0') return program_invocation_short_name;
  const auto path = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (path == nullptr) return "";
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

[[noreturn]] void EndWith(Lack lack) {
  char hint[160], line[320];
  WriteHint(lack, hint, sizeof hint);
  std::snprintf(line, sizeof line, "%s: %s; %s\n", ProgramName(), Name(lack), hint);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, std::strlen(line));
  _exit(kExitFailed);
}

// Returns if the system still gives this much memory; otherwise ends the process.
void EndWithoutMemory(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED && errno == ENOMEM) EndWith(Lack::kMemory);
  if (memory != MAP_FAILED) munmap(memory, bytes);
}

// Returns if the system still gives memory, files and processes (which count as threads do);
// otherwise ends the process.
void EndIfExhausted() {
  EndWithoutMemory(kProbeBytes);
  const int file = dup(STDERR_FILENO);
  if (file < 0 && errno == EMFILE) EndWith(Lack::kFiles);
  if (file >= 0) close(file);
  const pid_t child = vfork();
  if (child == 0) _exit(0);
  if (child < 0 && errno == EAGAIN) EndWith(Lack::kThreads);
  if (child > 0) waitpid(child, nullptr, 0);
}

// libzmq and other libraries abort when they get no thread or no memory. After any other abort this
// function returns, and the process dies as it would without a handler.
void OnAbort(int /*signal*/) { EndIfExhausted(); }

[[noreturn]] void OnTerminate() {
  if (const std::exception_ptr thrown = std::current_exception()) {
    Lack lack = Lack::kMemory;
    bool exhausted = false;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      exhausted = true;
    } catch (const std::system_error& error) {
      exhausted = IsLack(error.code(), &lack);
    } catch (...) {
    }
    if (exhausted) EndWith(lack);
  }
  EndIfExhausted();
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(ExceptionStatus().message()).c_str());
  std::abort();
}

void SetHandlers() {
  std::set_terminate(OnTerminate);
  (void)signal(SIGABRT, OnAbort);
}

}  // namespace

absl::Status ExceptionStatus() {
  if (std::current_exception() == nullptr) return absl::InternalError("terminated");
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return Exhausted(Lack::kMemory);
  } catch (const std::system_error& error) {
    Lack lack = Lack::kThreads;
    return IsLack(error.code(), &lack) ? Exhausted(lack) : absl::InternalError(error.what());
  } catch (const std::exception& error) {
    // PyTorch's allocator throws this text, with a stack trace behind it.
    if (absl::StrContains(error.what(), "not enough memory") ||
        absl::StrContains(error.what(), "can't allocate memory")) {
      return Exhausted(Lack::kMemory);
    }
    return absl::InternalError(error.what());
  } catch (...) {
    return absl::InternalError("an exception of an unknown type");
  }
}

absl::Status CanStartThreads(int count) {
  absl::Notification done;
  std::vector<std::thread> threads;
  const absl::Status started = CatchExceptions([&] {
    for (int i = 0; i < count; ++i) threads.emplace_back([&done] { done.WaitForNotification(); });
    return absl::OkStatus();
  });
  done.Notify();
  for (std::thread& thread : threads) thread.join();
  return started;
}

std::string ThreadLimitHint() { return Hint(Lack::kThreads); }

std::string FileLimitHint() { return Hint(Lack::kFiles); }

std::string MemoryLimitHint() { return Hint(Lack::kMemory); }

void EndInOneLineEarly() {
  SetHandlers();
  EndWithoutMemory(kLibraryBytes);
}

void EndInOneLine() {
  SetHandlers();
  // PyTorch takes a stack trace when it throws. The first trace loads a library, and glibc aborts
  // if there is no memory for it. So load the library now.
  void* frame = nullptr;
  (void)backtrace(&frame, 1);
}

}  // namespace tandem
