// What a program sets for its whole process.
#ifndef TANDEM_BASE_PROCESS_H_
#define TANDEM_BASE_PROCESS_H_

namespace tandem {

// For main(), before other threads start.
//  - The heap keeps freed memory for the next allocation instead of handing it back to the system: a
//    message of a megabyte is otherwise mapped, faulted in page by page and unmapped for every frame
//    received, which costs more than moving its bytes. Without effect where the C library is not
//    glibc.
//  - absl::Mutex does not look for deadlocks. A library built without NDEBUG, as Debian's is, enters
//    each Lock() into one graph under one lock of the whole process. Tests do look: they do not call
//    this.
void SetUpProcess();

}  // namespace tandem

#endif  // TANDEM_BASE_PROCESS_H_
