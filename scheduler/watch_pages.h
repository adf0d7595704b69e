// What the scheduler serves by HTTP about its job: a live page, the same facts as JSON and as
// Prometheus text, and two checks for supervisors. Only reads; nothing here changes the job.
//
//   /               a page that needs no network, with tables and curves
//   /status.json    scheduler/status.h          /history.json   scheduler/progress_history.h
//   /metrics        scheduler/metrics_text.h
//   /healthz        200 while the scheduler responds       /readyz   200 while the job trains
//
// Thread safety: any thread.
#ifndef TANDEM_SCHEDULER_WATCH_PAGES_H_
#define TANDEM_SCHEDULER_WATCH_PAGES_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "scheduler/http_server.h"
#include "scheduler/status_board.h"

namespace tandem::scheduler {

class WatchPages {
 public:
  // `board` outlives the pages.
  explicit WatchPages(StatusBoard* board) : board_(*board) {}

  HttpResponse Answer(const HttpRequest& request) const;

  // Whether the scheduler may serve at HOST:PORT. Until a request can be asked for the token of its
  // job, only processes of this host may see the job, unless the user says otherwise (`insecure`).
  static absl::Status CheckAddress(absl::string_view address, bool insecure);

 private:
  // Whether this request may see the job. Not OK: the response is 401.
  absl::Status CheckAccess(const HttpRequest& request) const;

  StatusBoard& board_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_WATCH_PAGES_H_
