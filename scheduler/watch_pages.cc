#include "scheduler/watch_pages.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
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
  if (const absl::Status access = CheckAccess(request); !access.ok()) {
    return {.code = 401, .body = absl::StrCat(access.message(), "\n")};
  }
  const std::string& path = request.path;
  if (path == "/") return {.type = "text/html; charset=utf-8", .body = kPageHtml};
  const bool known = path == "/status.json" || path == "/history.json" || path == "/metrics" ||
                     path == "/healthz" || path == "/readyz";
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

absl::Status WatchPages::CheckAddress(absl::string_view address, bool insecure) {
  if (insecure || IsLoopback(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--http ", address,
      ": other hosts could see the job without a password; hint: 127.0.0.1 and ssh -L, or "
      "--insecure-http in a network that you trust"));
}

absl::Status WatchPages::CheckAccess(const HttpRequest& /*request*/) const {
  return absl::OkStatus();
}

}  // namespace tandem::scheduler
