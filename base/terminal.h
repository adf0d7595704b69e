// CanRewriteLines tells whether a program may rewrite a line that it has printed.
#ifndef TANDEM_BASE_TERMINAL_H_
#define TANDEM_BASE_TERMINAL_H_

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace tandem {

// Whether standard output is a terminal that understands escape sequences. Open MPI gives its ranks
// terminals, too, but copies their output to wherever its own goes.
inline bool CanRewriteLines() {
  if (isatty(STDOUT_FILENO) == 0 || getenv("OMPI_COMM_WORLD_RANK") != nullptr) return false;
  const char* const kind = getenv("TERM");
  return kind == nullptr || std::strcmp(kind, "dumb") != 0;
}

}  // namespace tandem

#endif  // TANDEM_BASE_TERMINAL_H_
