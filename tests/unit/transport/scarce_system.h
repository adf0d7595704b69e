// A system that has less than this one: no descriptor is left, or the kernel is older.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_SCARCE_SYSTEM_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_SCARCE_SYSTEM_H_

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

#include "base/check.h"

namespace tandem {

// While it lives, this process can open nothing: all numbers of descriptors that it may have are
// taken. Any thread of it.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    TANDEM_CHECK(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const int next = open("/", O_RDONLY | O_CLOEXEC);  // the lowest that is free
    TANDEM_CHECK(next >= 0 && close(next) == 0);
    rlimit fewer = before_;
    fewer.rlim_cur = static_cast<rlim_t>(next);
    TANDEM_CHECK(setrlimit(RLIMIT_NOFILE, &fewer) == 0);
  }
  ~NoDescriptorsLeft() { TANDEM_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }
  NoDescriptorsLeft(const NoDescriptorsLeft&) = delete;
  NoDescriptorsLeft& operator=(const NoDescriptorsLeft&) = delete;

 private:
  rlimit before_ = {};
};

// Linux before 5.1, for this process from here on: memory cannot be sealed against writes to come.
inline void ForbidSealsForReaders() {
  constexpr unsigned kFutureWrite = 0x10;  // F_SEAL_FUTURE_WRITE
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_ADD_SEALS, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, kFutureWrite, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof code / sizeof code[0], code};
  TANDEM_CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  TANDEM_CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// Whether `test` says so in a process on such a kernel.
template <typename Test>
bool OnAnOldKernel(const Test& test) {
  const pid_t child = fork();
  TANDEM_CHECK(child >= 0);
  if (child == 0) {
    ForbidSealsForReaders();
    _exit(test() ? 0 : 1);
  }
  int status = 0;
  TANDEM_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_SCARCE_SYSTEM_H_
