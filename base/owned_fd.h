// OwnedFd is a file descriptor that is closed with its owner.
//
// Thread safety: as any value type.
#ifndef TANDEM_BASE_OWNED_FD_H_
#define TANDEM_BASE_OWNED_FD_H_

#include <unistd.h>

#include <utility>

namespace tandem {

class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  // Closes the descriptor now and returns the result of close(2), for callers that need to know it;
  // errno is set.
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_ = -1;
};

}  // namespace tandem

#endif  // TANDEM_BASE_OWNED_FD_H_
