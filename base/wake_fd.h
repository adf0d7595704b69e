// WakeFd is a descriptor that becomes readable on Wake() and stays so until Clear(). A Wake() ends
// a sleep in poll or epoll_wait.
//
// Thread safety: any thread.
#ifndef TANDEM_BASE_WAKE_FD_H_
#define TANDEM_BASE_WAKE_FD_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/check.h"
#include "base/owned_fd.h"

namespace tandem {

class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { TANDEM_CHECK(fd_.valid()); }
  int fd() const { return fd_.get(); }
  void Wake() {
    const uint64_t one = 1;
    // The write fails only when the counter is full, and then the descriptor is readable anyway.
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof one);
  }
  void Clear() {
    uint64_t count;
    [[maybe_unused]] const ssize_t bytes = read(fd_.get(), &count, sizeof count);
  }

 private:
  const OwnedFd fd_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_WAKE_FD_H_
