// The state that the parts of a simulated world share: the job, the clock, one random generator,
// the trace, and the first error.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_SIM_CONTEXT_H_
#define TANDEM_TOOLS_SIM_SIM_CONTEXT_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/buffer.h"
#include "base/random.h"
#include "job/job.h"
#include "proto/endpoint.h"
#include "proto/incarnation.h"
#include "tools/sim/agenda.h"
#include "tools/sim/judge.h"
#include "tools/sim/trace.h"
#include "tools/sim/world_options.h"

namespace tandem::sim {

struct SimContext {
  SimContext(const job::ResolvedJob& job_plan, const WorldOptions& world_options)
      : plan(job_plan),
        options(world_options),
        trace(world_options.trace_lines),
        random(world_options.seed) {}

  // Ends the world with an error. Keeps only the first error.
  void Fail(const std::string& what);
  void Log(std::string line) { trace.Line(agenda.now(), std::move(line)); }
  // Calls `tick` every options.tick, with a random phase.
  void StartClock(std::function<void()> tick);
  // A view reaches a core up to options.view_delay late.
  absl::Duration ViewDelay() { return options.view_delay * random.NextDouble(); }

  const job::ResolvedJob& plan;
  const WorldOptions options;
  Agenda agenda;
  EventTrace trace;
  Random random;
  HeapBufferSource buffers;
  Judge* judge = nullptr;  // of the toy model; null with another runner
  absl::Status failure;
};

// The incarnation of an endpoint's process. A worker that serves rows has the incarnation of
// its server.
inline uint64_t IncarnationOf(const job::ResolvedJob& plan, EndpointId id) {
  const auto index = static_cast<uint64_t>(id.index);
  const auto processes = static_cast<uint64_t>(plan.server_processes());
  if (id.role != Role::kServer) return 2000 + index;
  return index < processes ? 1000 + index : ServerOfWorker(2000 + index - processes);
}

// The time between two heartbeats of a process.
inline constexpr absl::Duration kSimBeat = absl::Seconds(1);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_CONTEXT_H_
