// A server process: one thread a shard, each with an endpoint of its own, and a main thread that
// speaks with the scheduler, loads, saves and reports.
#ifndef TANDEM_SERVER_SERVER_SHELL_H_
#define TANDEM_SERVER_SERVER_SHELL_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "job/job.h"
#include "transport/transport.h"

namespace tandem {

// Makes an endpoint for this process: bound where the role's flags say.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<Transport>>(EndpointId self)>;

struct ServerOptions {
  JobPlan plan;
  std::string scheduler;     // address
  int index = -1;            // wanted server index; -1 = any free one
  uint64_t incarnation = 0;  // random, new in every process
  TransportFactory make_transport;
  std::string init_from;                    // directory of a save; empty = first values
  std::string record_dir;                   // where staleness records go, if the job asks for them
  const std::atomic<bool>* stop = nullptr;  // set by a signal handler
};

// Serves until the job ends. OK: an orderly end. Otherwise who failed, and why.
absl::Status RunServer(const ServerOptions& options);

}  // namespace tandem

#endif  // TANDEM_SERVER_SERVER_SHELL_H_
