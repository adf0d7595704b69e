// Where the system has no memory, thread or file left: one line that says which limit to raise, in the
// place of an exception or an abort.
//
// Exceptions of the standard library become statuses at the entry of each thread and task
// (CatchExceptions), so that the other nodes of a job hear why this one ends. What escapes, or happens
// inside a library that aborts, ends a program of ours in order (EndInOneLine).
//
// Thread safety: free functions; any thread.
#ifndef TANDEM_BASE_EXHAUSTION_H_
#define TANDEM_BASE_EXHAUSTION_H_

#include <string>

#include "absl/status/status.h"

namespace tandem {

// In a catch block: the exception at hand as a status. RESOURCE_EXHAUSTED: no memory, thread or file,
// with the limit to raise. INTERNAL: any other.
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

// RESOURCE_EXHAUSTED unless so many more threads can run at the same time. For libraries that abort
// where they get none. Takes some 20 us for each.
absl::Status CanStartThreads(int count);

// "hint: raise ulimit -u, now 12": for an error that says that no thread or process can be started.
std::string ThreadLimitHint();
// The same of files.
std::string FileLimitHint();

// For main() of our programs: where no memory or no thread is left, and nobody catches that, the
// program says so in one line and exits with status 1.
void EndInOneLine();
// A part of it that works before main() and before libraries have begun, which need memory themselves (one
// waits for it without an end, so that the program ends here if there is too little):
//   TANDEM_BEFORE_LIBRARIES(EndInOneLineEarly);
// Programs only: shared libraries cannot have such functions.
void EndInOneLineEarly();
#define TANDEM_BEFORE_LIBRARIES(function)                                                    \
  __attribute__((section(".preinit_array"), used)) static void (*const before_libraries)() = \
      function

}  // namespace tandem

#endif  // TANDEM_BASE_EXHAUSTION_H_
