// A server process: one thread a shard, each with an endpoint of its own, and a main thread that
// speaks with the scheduler, loads, saves and reports.
#ifndef TANDEM_SERVER_SERVER_SHELL_H_
#define TANDEM_SERVER_SERVER_SHELL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "job/job.h"
#include "node/job_member.h"

namespace tandem::server {

struct ServerOptions {
  job::JobPlan plan;
  node::JobMember::Options member;  // but what the shell knows: role, endpoints
  std::string record_dir;  // where staleness records and orders go, if the job asks for them
  std::string replay;      // folder of a run whose order this one is to take; empty = none
  // A trace of what each shard did with frames of the first `trace_steps` steps, and of its saves, goes
  // here (collectives/trace.h); empty = none.
  std::string trace_path;
  int64_t trace_steps = 0;
  const std::atomic<bool>* end = nullptr;  // set by whoever runs it when it is to end; may be null
  // Called when the job has ended for this server, well or not. The call comes before the wait for
  // the shards, because a shard may still be loading a checkpoint. May be empty.
  std::function<void(const absl::Status& how)> on_end;
};

// Serves until the job ends. OK: an orderly end. Otherwise who failed, and why.
absl::Status RunServer(const ServerOptions& options);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SERVER_SHELL_H_
