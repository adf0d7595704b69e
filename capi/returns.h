// Helpers with which all functions of the C interface return: statuses become -1 and a text of the
// calling thread, and exceptions do not leave a function.
//
// Thread safety: any thread; each thread has its own text.
#ifndef TANDEM_CAPI_RETURNS_H_
#define TANDEM_CAPI_RETURNS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/exhaustion.h"

namespace tandem::capi {

// Returns 0, or sets the text and returns -1.
int Return(const absl::Status& status);
// Returns 1 or 0, or sets the text and returns -1.
int Return(const absl::StatusOr<bool>& status);
// The text for tandem_error().
const char* LastError();

// The error "`what`: a null pointer".
absl::Status Missing(absl::string_view what);
std::string OrEmpty(const char* text);
absl::Time After(int64_t timeout_ms);

// Prepares the process for functions that start something: sets it up as Tandem's programs do
// (base/process.h), and ignores SIGPIPE, so that a peer that goes away causes an error of a call
// instead of a signal. A handler that the program has set stays as it is.
void SetUpHost();

// Calls `body` and converts its result. Exceptions become errors, because C has none.
template <class Body>
int Call(const Body& body) {
  try {
    return Return(body());
  } catch (...) {
    return Return(ExceptionStatus());
  }
}

// The same for a function that needs `handle`, which messages call `what`.
template <class Handle, class Body>
int CallOn(const Handle* handle, absl::string_view what, const Body& body) {
  return handle == nullptr ? Return(Missing(what)) : Call(body);
}

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_RETURNS_H_
