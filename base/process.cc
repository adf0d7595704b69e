#include "base/process.h"

#include <cstdlib>  // defines __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "absl/synchronization/mutex.h"

namespace tandem {

void SetUpProcess() {
#ifdef __GLIBC__
  // The most that glibc takes: larger blocks are mapped, each on its own.
  (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
  (void)mallopt(M_TOP_PAD, 16 << 20);  // grows in steps of this
#endif
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace tandem
