// Settings that a program makes for its whole process or for a thread.
#ifndef TANDEM_BASE_PROCESS_H_
#define TANDEM_BASE_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace tandem {

// Sets up the process. Call it in main(), before other threads start.
// - The heap keeps freed memory for the next allocation instead of returning it to the system.
//   Otherwise a message of a megabyte is mapped, faulted in page by page and unmapped for every
//   frame received, which costs more than moving its bytes. Only glibc has this setting; other C
//   libraries keep their behaviour.
// - absl::Mutex does not search for deadlocks. A library built without NDEBUG, as Debian's is,
//   would enter each Lock() into one graph under one lock of the whole process. Tests do not call
//   this function, so they do search.
// - SIGCHLD gets its default action. If the caller of the program ignores SIGCHLD, the program
//   inherits this through exec(). Then the system forgets a child as soon as it ends, and nobody
//   can ask for its status.
// - SIGUSR1 is ignored unless the program handles it. Batch systems send it to every process of a
//   job as a request for a checkpoint, and by default it kills. A caller may have blocked the
//   signal until now.
// - Descriptors 0, 1 and 2 are open; those that the caller closed lead to /dev/null. Otherwise the
//   next socket or pipe gets such a number, and texts for stderr are written into it.
void SetUpProcess();

// The folder of this program, which also has the other programs of Tandem.
std::string ProgramFolder();

// Waits for the end of a child and returns its status, as waitpid(2) does. Returns none if the
// status cannot be known, because SIGCHLD is ignored or other code has asked for it; then the child
// may have failed.
std::optional<int> WaitForEnd(pid_t child);

// RESOURCE_EXHAUSTED: this process may not open `count` more descriptors.
absl::Status CheckDescriptorsLeft(int count);

// Keeps the calling thread, and every thread that it starts later, on `count` of its allowed
// processors, beginning with number `first` of them and wrapping around. Requires: first >= 0,
// count >= 1. UNAVAILABLE: the system forbids it or does not support it.
absl::Status StayOnProcessors(int first, int count);

}  // namespace tandem

#endif  // TANDEM_BASE_PROCESS_H_
