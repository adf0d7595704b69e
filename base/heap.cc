#include "base/heap.h"

#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace tandem {

void KeepFreedMemory() {
#ifdef __GLIBC__
  // The most that glibc takes: larger blocks are mapped, each on its own.
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
  (void)mallopt(M_TOP_PAD, 16 << 20);  // grows in steps of this
#endif
}

}  // namespace tandem
