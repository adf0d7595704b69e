#include "capi/returns.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/process.h"

namespace tandem::capi {
namespace {

// The last error of this thread. Functions that fail may have no object that could hold it.
thread_local std::string last_error;  // NOLINT

}  // namespace

int Return(const absl::Status& status) {
  last_error = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  return status.ok() ? 0 : -1;
}

int Return(const absl::StatusOr<bool>& status) {
  if (!status.ok()) return Return(status.status());
  last_error.clear();
  return *status ? 1 : 0;
}

const char* LastError() { return last_error.c_str(); }

absl::Status Missing(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": a null pointer"));
}

std::string OrEmpty(const char* text) { return text == nullptr ? "" : text; }

absl::Time After(int64_t timeout_ms) { return MonotonicNow() + absl::Milliseconds(timeout_ms); }

// The program may wait for signals that it has blocked, so its mask stays.
void SetUpHost() {
  sigset_t blocked;
  const bool known = pthread_sigmask(SIG_BLOCK, nullptr, &blocked) == 0;
  SetUpProcess();
  if (known) (void)pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  struct sigaction now = {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace tandem::capi
