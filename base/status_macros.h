// RETURN_IF_ERROR and ASSIGN_OR_RETURN, which Debian's Abseil does not have yet.
#ifndef TANDEM_BASE_STATUS_MACROS_H_
#define TANDEM_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)

// The variable's name contains the line number, so the expression may be a lambda that uses the
// macro, too.
#define TANDEM_RETURN_IF_ERROR(expression) \
  TANDEM_RETURN_IF_ERROR_INNER(TANDEM_CONCAT(tandem_status_, __LINE__), expression)
#define TANDEM_RETURN_IF_ERROR_INNER(status, expression)    \
  do {                                                      \
    if (absl::Status status = (expression); !status.ok()) { \
      return status;                                        \
    }                                                       \
  } while (false)

// ASSIGN_OR_RETURN(auto x, F()): declares x from the value, or returns the status.
#define TANDEM_ASSIGN_OR_RETURN(declaration, expression) \
  TANDEM_ASSIGN_OR_RETURN_INNER(TANDEM_CONCAT(tandem_or_, __LINE__), declaration, expression)
#define TANDEM_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                          \
  if (!temporary.ok()) return std::move(temporary).status();              \
  declaration = *std::move(temporary)

#endif  // TANDEM_BASE_STATUS_MACROS_H_
