// What the scheduler serves by HTTP about its job: a live page, the same facts as JSON and as
// Prometheus text, and two checks for supervisors. Only reads; nothing here changes the job.
//
//   /               a page that needs no network, with tables and curves
//   /status.json    scheduler/status.h
//   /history.json   scheduler/observe/progress_history.h
//   /metrics        scheduler/observe/metrics_text.h
//   /healthz        200 while the scheduler responds       /readyz   200 while the job trains
//
// Thread safety: any thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_WATCH_PAGES_H_
#define TANDEM_SCHEDULER_OBSERVE_WATCH_PAGES_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/observe/counter_file.h"
#include "scheduler/observe/http_server.h"
#include "scheduler/observe/status_board.h"
#include "transport/job_keys.h"

namespace tandem::scheduler {

class WatchPages {
 public:
  enum class Audience { kThisHost, kNetwork };

  // `board` and `counters` outlive the pages. `password`: all pages but the two checks ask for it,
  // as the password of a browser (with any user name) or as "Bearer PASSWORD"; empty: they do not.
  // kThisHost: only requests that name this host are answered. A browser on this host sends others
  // for a web page whose own name leads here (DNS rebinding).
  WatchPages(StatusBoard* board, CounterFile* counters, Audience audience, std::string password)
      : board_(*board), counters_(*counters), audience_(audience), password_(std::move(password)) {}

  // The password of the pages of a job with a token: 32 hexadecimal digits. HTTP is not encrypted.
  // So the token itself must not travel, and this password admits to nothing else.
  static std::string PasswordOf(const transport::JobKeys& keys);

  HttpResponse Answer(const HttpRequest& request) const;

  // Whether a scheduler without a token may serve at HOST:PORT: only to processes of this host.
  static absl::Status CheckAddress(absl::string_view address);

 private:
  // Whether this request may see the job. Not OK: the response is 401.
  absl::Status CheckAccess(const HttpRequest& request) const;

  StatusBoard& board_;
  CounterFile& counters_;
  Audience audience_;
  std::string password_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_WATCH_PAGES_H_
