// TANDEM_CHECK is for our own bugs: a broken invariant prints where and why, then aborts. Bytes
// from a peer, a file or a user must never reach a CHECK, but cause an absl::Status. (Debian's
// Abseil has no absl/log.)
#ifndef TANDEM_BASE_CHECK_H_
#define TANDEM_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace tandem {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", file, line, what);
  std::abort();
}

}  // namespace tandem

#define TANDEM_CHECK(condition)                                              \
  do {                                                                       \
    if (!(condition)) ::tandem::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define TANDEM_CHECK_OK(expression)                                                         \
  do {                                                                                      \
    if (const absl::Status tandem_check_status = (expression); !tandem_check_status.ok()) { \
      ::tandem::CheckFailed(__FILE__, __LINE__, tandem_check_status.ToString().c_str());    \
    }                                                                                       \
  } while (false)

#endif  // TANDEM_BASE_CHECK_H_
