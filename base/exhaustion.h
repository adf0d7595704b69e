// Errors for a system that has no memory, thread or file left: one line that says which limit to
// raise, instead of an exception or an abort.
//
// Exceptions of the standard library become statuses at the entry of each thread and task
// (CatchExceptions), so that the other nodes of a job learn why this one ends. Exceptions that
// escape, and aborts inside libraries, end our programs with one line (EndInOneLine).
//
// Thread safety: free functions; any thread.
#ifndef TANDEM_BASE_EXHAUSTION_H_
#define TANDEM_BASE_EXHAUSTION_H_

#include <string>

#include "absl/status/status.h"

namespace tandem {

// Converts the current exception to a status; call it in a catch block. RESOURCE_EXHAUSTED: no
// memory, thread or file, with the limit to raise. INTERNAL: any other exception.
absl::Status ExceptionStatus();

// Returns the Status or StatusOr of `body`. If `body` throws, returns the exception as a status.
template <typename Body>
auto CatchExceptions(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return ExceptionStatus();
  }
}

// RESOURCE_EXHAUSTED unless `count` more threads can run at the same time. For libraries that abort
// when they cannot start a thread. Takes about 20 us per thread.
absl::Status CanStartThreads(int count);

// "hint: raise ulimit -u, now 12": for errors that say that no thread or process can be started.
std::string ThreadLimitHint();
// The same for files, and for memory.
std::string FileLimitHint();
std::string MemoryLimitHint();

// For main() of our programs: if no memory or no thread is left and no code handles it, the program
// says so in one line and exits with status 1.
void EndInOneLine();
// The part of EndInOneLine that works before main() and before the constructors of libraries.
// Libraries need memory themselves. OpenBLAS would wait for it without end, so the program ends
// here if there is too little:
//
//   TANDEM_BEFORE_LIBRARIES(EndInOneLineEarly);
//
// Only for programs: shared libraries cannot have such functions.
void EndInOneLineEarly();
#define TANDEM_BEFORE_LIBRARIES(function)                                                    \
  __attribute__((section(".preinit_array"), used)) static void (*const before_libraries)() = \
      function

}  // namespace tandem

#endif  // TANDEM_BASE_EXHAUSTION_H_
