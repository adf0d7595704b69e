// What a program sets for its whole process or a thread.
#ifndef TANDEM_BASE_PROCESS_H_
#define TANDEM_BASE_PROCESS_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace tandem {

// For main(), before other threads start.
//  - The heap keeps freed memory for the next allocation instead of handing it back to the system.
//    Otherwise a message of a megabyte is mapped, faulted in page by page and unmapped for every
//    frame received, which costs more than moving its bytes. Only glibc can be told so; another C
//    library goes on as it does.
//  - absl::Mutex does not look for deadlocks: a library built without NDEBUG, as Debian's is, would
//    enter each Lock() into one graph under one lock of the whole process. Tests do not call this,
//    so that they do look.
//  - SIGCHLD does what it does by default. Where whoever started the program ignores it, which
//    exec() hands on, the system forgets a child as it ends, and nobody can ask how.
//  - SIGUSR1 is ignored unless the program handles it. Batch systems send it to every process of a
//    job as a request to save, and by default it kills.
//  - Descriptors 0, 1 and 2 are open; those that the caller closed lead to /dev/null. Otherwise the
//    next socket or pipe gets such a number, and texts for stderr are written into it.
void SetUpProcess();

// The folder of this program, where the others of Tandem are.
std::string ProgramFolder();

// Waits for the end of a child. Returns its status, as waitpid(2) has it; none if that is not to be
// known, because SIGCHLD is ignored or somebody else has asked: it may have failed.
std::optional<int> WaitForEnd(pid_t child);

// RESOURCE_EXHAUSTED: this process may not open `count` descriptors more.
absl::Status CheckDescriptorsLeft(int count);

// The calling thread, and every thread that it starts from now on, stays on `count` of the
// processors it may use, from number `first` of them on, counted round and round. Requires: first
// >= 0, count >= 1. UNAVAILABLE: the system does not let it, or knows no such thing.
absl::Status StayOnProcessors(int first, int count);

}  // namespace tandem

#endif  // TANDEM_BASE_PROCESS_H_
