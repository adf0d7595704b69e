#include "scheduler/watch_pages.h"

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "scheduler/metrics_text.h"
#include "scheduler/page_html.h"
#include "scheduler/summary.h"

namespace tandem::scheduler {
namespace {

constexpr absl::Duration kSnapshotWithin =
    absl::Seconds(2);  // the scheduler ticks ten times a second
constexpr char kJson[] = "application/json";

}  // namespace

HttpResponse WatchPages::Answer(const HttpRequest& request) const {
  const std::string& path = request.path;
  const bool check = path == "/healthz" || path == "/readyz";
  if (const absl::Status access = CheckAccess(request); !check && !access.ok()) {
    return {.code = 401, .body = absl::StrCat(access.message(), "\n")};
  }
  if (path == "/") return {.type = "text/html; charset=utf-8", .body = kPageHtml};
  const bool known =
      check || path == "/status.json" || path == "/history.json" || path == "/metrics";
  if (!known) {
    return {.code = 404,
            .body = "expected /, /status.json, /history.json, /metrics, /healthz or /readyz\n"};
  }
  const std::shared_ptr<const Snapshot> snapshot = board_.Look(kSnapshotWithin);
  if (snapshot == nullptr) return {.code = 503, .body = "the scheduler does not respond\n"};
  if (path == "/healthz") return {.body = "ok\n"};
  if (path == "/status.json") return {.type = kJson, .body = OneLine(snapshot->status)};
  if (path == "/history.json") return {.type = kJson, .body = OneLine(snapshot->history)};
  if (path == "/metrics") {
    return {.type = "text/plain; version=0.0.4; charset=utf-8",
            .body = MetricsText(snapshot->status)};
  }
  const std::string state = snapshot->status.value("state", "");
  return {.code = state == "running" ? 200 : 503, .body = state + "\n"};
}

absl::Status WatchPages::CheckAddress(absl::string_view address) {
  if (IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--http ", address,
                   ": other hosts could see the job, which has no token; hint: give it one "
                   "(docs/SECURITY.md), or use 127.0.0.1 and ssh -L, or allow it by --insecure"));
}

absl::Status WatchPages::CheckAccess(const HttpRequest& request) const {
  if (keys_ == nullptr) return absl::OkStatus();
  absl::string_view given = request.authorization;
  std::string password;
  if (absl::ConsumePrefix(&given, "Basic ") && absl::Base64Unescape(given, &password)) {
    given = password;  // "user:token", with any user
    given.remove_prefix(std::min(given.size(), given.find(':') + 1));
  } else {
    absl::ConsumePrefix(&given, "Bearer ");
  }
  // Keys are compared, not tokens: a client learns nothing from the time that this takes.
  const absl::StatusOr<transport::JobKeys> keys = transport::JobKeys::FromToken(given);
  if (keys.ok() && keys->word() == keys_->word()) return absl::OkStatus();
  return absl::UnauthenticatedError("expected the token of the job as the password");
}

}  // namespace tandem::scheduler
