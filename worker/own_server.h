// The server that a worker is where tables are on workers (Table.synchroniser): its shards hold the
// worker's share of the rows, or its copy of them. It is the server of server_shell.h with all that it
// does, on threads of the worker's process, and a member of the job by itself: so rows on workers are
// found, applied, saved and counted by the code that does so on servers.
//
// Thread safety: none; one thread.
#ifndef TANDEM_WORKER_OWN_SERVER_H_
#define TANDEM_WORKER_OWN_SERVER_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/server_shell.h"

namespace tandem::worker {

class OwnServer {
 public:
  // `options`: as of a server, with the member that the worker is; they outlive the object. Its first
  // transport is made by then.
  explicit OwnServer(server::ServerOptions options);
  ~OwnServer();

  // Why it has ended, if not orderly; OK while it runs.
  absl::Status failure() const;

  // Waits for its end: orderly, when the job is over; after a failure of the worker, of which the
  // scheduler tells all, at the latest when `patience` is over.
  absl::Status Join(const absl::Status& worker);

 private:
  server::ServerOptions options_;
  std::atomic<bool> end_{false};
  mutable absl::Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status how_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_OWN_SERVER_H_
