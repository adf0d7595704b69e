// A descriptor that becomes readable when something has happened, until it is reset.
//
// Thread safety: any thread.
#ifndef TANDEM_COLLECTIVES_MEETING_WAKE_FD_H_
#define TANDEM_COLLECTIVES_MEETING_WAKE_FD_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"
#include "transport/shm_memory.h"

namespace tandem {

class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { TANDEM_CHECK(fd_.valid()); }
  int fd() const { return fd_.get(); }
  void Set() {
    const uint64_t one = 1;
    (void)!write(fd_.get(), &one, sizeof one);
  }
  void Reset() {
    uint64_t count;
    (void)!read(fd_.get(), &count, sizeof count);
  }

 private:
  OwnedFd fd_;
};

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_MEETING_WAKE_FD_H_
