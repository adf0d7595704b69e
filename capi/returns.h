// What the functions of the C interface share: statuses become -1 and a text of the calling thread,
// and no exception leaves them.
//
// Thread safety: any thread; texts are each thread's own.
#ifndef TANDEM_CAPI_RETURNS_H_
#define TANDEM_CAPI_RETURNS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/exhaustion.h"

namespace tandem::capi {

// 0, or -1 and the text.
int Return(const absl::Status& status);
// 1 or 0, or -1 and the text.
int Return(const absl::StatusOr<bool>& status);
// What tandem_error() has.
const char* LastError();

// "rows: a null pointer".
absl::Status Missing(absl::string_view what);
std::string OrEmpty(const char* text);
absl::Time After(int64_t timeout_ms);

// For a function that begins something: the process as Tandem's programs set theirs up
// (base/process.h). A peer that goes away is then an error of a call, not a signal; a handler that
// the program has set stays as it is.
void SetUpHost();

// What a function returns; the caller's language knows no exceptions of this one.
template <class Body>
int Call(const Body& body) {
  try {
    return Return(body());
  } catch (...) {
    return Return(ExceptionStatus());
  }
}

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_RETURNS_H_
