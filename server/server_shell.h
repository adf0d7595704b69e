// A server process: one thread for each shard, with an endpoint of its own, and a main thread that
// exchanges messages with the scheduler. Another thread writes the files of checkpoints.
//
// The folder server/ has everything of a server: rows (rows/), the order of updates and its replay
// (record/), files of checkpoints (checkpoint/), and above these ranges and shards (shard_core.h).
#ifndef TANDEM_SERVER_SERVER_SHELL_H_
#define TANDEM_SERVER_SERVER_SHELL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "job/job.h"
#include "node/node_session.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::server {

struct ServerOptions {
  job::ResolvedJob plan;
  node::NodeSession::Options member;  // the shell fills in role and endpoints
  std::string record_dir;  // folder for staleness records and update orders, if the job wants them
  std::string replay;      // folder of the run whose update order this run repeats; empty = none
  // File for a trace of each shard: the frames of the first `trace_steps` steps, and the
  // checkpoints (collectives/trace.h). Empty = none.
  std::string trace_path;
  int64_t trace_steps = 0;
  // The checkpoint with which the job begins, if there is one. Other threads of the process may use
  // it at the same time.
  std::shared_ptr<SharedCheckpoint> checkpoint = std::make_shared<SharedCheckpoint>();
  const std::atomic<bool>* end = nullptr;  // set to true to end the server; may be null
  // Called when the job has ended for this server, well or not. The call comes before the wait for
  // the shards, because a shard may still be loading a checkpoint. May be empty.
  std::function<void(const absl::Status& how)> on_end;
};

// Serves until the job ends. OK: an orderly end. Otherwise the error names the failed node and the
// reason.
absl::Status RunServer(const ServerOptions& options);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SERVER_SHELL_H_
