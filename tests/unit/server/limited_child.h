// Runs code in a child process that may have little further address space.
#ifndef TANDEM_TESTS_UNIT_SERVER_LIMITED_CHILD_H_
#define TANDEM_TESTS_UNIT_SERVER_LIMITED_CHILD_H_

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>
#include <functional>

#include "gtest/gtest.h"

namespace tandem {

// The exit status of `program` in a child that may have `more` bytes of further address space.
// Above 99: the child could not be limited, or has died. Sanitizers need addresses of their own, so
// skip such tests with them.
inline int RunLimited(size_t more, const std::function<int()>& program) {
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream file("/proc/self/statm");
    size_t pages = 0;
    file >> pages;
    const rlim_t most = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + more;
    const rlimit limit = {most, most};
    _exit(setrlimit(RLIMIT_AS, &limit) != 0 ? 100 : program());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_SERVER_LIMITED_CHILD_H_
