#include "scheduler/observe/watch_pages.h"

#include <sodium.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "scheduler/observe/metrics_text.h"
#include "scheduler/observe/page_html.h"
#include "scheduler/observe/summary.h"
#include "transport/tcp_address.h"

namespace tandem::scheduler {
namespace {

constexpr absl::Duration kSnapshotWithin =
    absl::Seconds(2);  // the scheduler ticks ten times a second
constexpr char kJson[] = "application/json";

// Whether the header Host names this host, or there is none.
bool NamesThisHost(absl::string_view host) {
  const auto is_loopback = [](const std::string& address) {
    return transport::IsLoopbackHost(transport::SplitTcpAddress(address).host);
  };
  const std::string with_port = absl::StrCat("tcp://", host);  // if it has one
  return host.empty() || is_loopback(with_port) || is_loopback(with_port + ":80");
}

}  // namespace

HttpResponse WatchPages::Answer(const HttpRequest& request) const {
  if (audience_ == Audience::kThisHost && !NamesThisHost(request.host)) {
    return {.code = 403, .body = "expected localhost or 127.0.0.1 as the host of the address\n"};
  }
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
            .body = MetricsText(snapshot->status, &counters_)};
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
  if (password_.empty()) return absl::OkStatus();
  absl::string_view given = request.authorization;
  std::string decoded;
  const std::string scheme = absl::AsciiStrToLower(given.substr(0, given.find(' ')));
  if (scheme == "basic" || scheme == "bearer") given.remove_prefix(scheme.size() + 1);
  if (scheme == "basic" && absl::Base64Unescape(given, &decoded)) {
    given = decoded;  // "user:password"
    given.remove_prefix(std::min(given.size(), given.find(':') + 1));
  }
  if (given.size() == password_.size() &&
      sodium_memcmp(given.data(), password_.data(), given.size()) == 0) {
    return absl::OkStatus();
  }
  return absl::UnauthenticatedError(
      "expected the password in the file http_password of the run's folder");
}

std::string WatchPages::PasswordOf(const transport::JobKeys& keys) {
  constexpr absl::string_view kPurpose = "tandem pages";
  std::array<uint8_t, 16> password;
  TANDEM_CHECK(crypto_generichash(password.data(), password.size(),
                                  reinterpret_cast<const uint8_t*>(kPurpose.data()),
                                  kPurpose.size(), keys.word().data(), keys.word().size()) == 0);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(password.data()), password.size()));
}

}  // namespace tandem::scheduler
