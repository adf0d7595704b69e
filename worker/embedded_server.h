// The server inside a worker, for tables on workers (Table.placement). Its shards hold the
// worker's share of the rows, or its copy of them. The object runs the whole server of
// server_shell.h on threads of the worker's process, as a job member of its own. Rows on workers
// are therefore found, applied, saved and counted by the same code as rows on servers.
//
// Thread safety: none; one thread.
#ifndef TANDEM_WORKER_EMBEDDED_SERVER_H_
#define TANDEM_WORKER_EMBEDDED_SERVER_H_

#include <atomic>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/server_shell.h"

namespace tandem::worker {

class EmbeddedServer {
 public:
  // `options`: those of a server, with `member` as the worker has it. Objects that the options
  // point to outlive this one. Requires: the worker has made its own first transport already.
  explicit EmbeddedServer(server::ServerOptions options);
  ~EmbeddedServer();

  // Why the server has ended, if it failed; OK while it runs.
  absl::Status failure() const;

  // Waits until the server ends. The server ends by itself when the job is over. After a failure of
  // the worker (`worker`), the scheduler tells all nodes of the failure, and the server ends; Join
  // waits for that for kPatience at most, and then stops the server.
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

#endif  // TANDEM_WORKER_EMBEDDED_SERVER_H_
