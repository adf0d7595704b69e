// How this process's heap treats memory that is freed.
#ifndef TANDEM_BASE_HEAP_H_
#define TANDEM_BASE_HEAP_H_

namespace tandem {

// Keeps freed memory for the next allocation instead of handing it back to the system: a message of
// a megabyte is otherwise mapped, faulted in page by page and unmapped for every frame received,
// which costs more than moving its bytes. For main(), before other threads start; without effect
// where the C library is not glibc.
void KeepFreedMemory();

}  // namespace tandem

#endif  // TANDEM_BASE_HEAP_H_
