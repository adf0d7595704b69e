// The state that the parts of a simulated world share: the job, the clock, the processes, one
// random generator, the trace, and the first error.
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
#include "tools/sim/agenda.h"
#include "tools/sim/observer.h"
#include "tools/sim/processes.h"
#include "tools/sim/trace.h"
#include "tools/sim/world_options.h"

namespace tandem::sim {

struct SimContext {
  // `its_observer` may be null.
  SimContext(const job::ResolvedJob& job_plan, const WorldOptions& world_options,
             Observer* its_observer)
      : plan(job_plan),
        options(world_options),
        observer(its_observer == nullptr ? nobody : *its_observer),
        processes(plan, world_options.attempt, agenda),
        trace(world_options.trace_lines),
        random(world_options.seed) {}

  // Ends the world with an error. Keeps only the first error.
  void Fail(const std::string& what);
  void Log(std::string line) { trace.Line(agenda.now(), std::move(line)); }
  // Calls `tick` on the process of `id` every options.tick, with a random phase.
  void StartClock(EndpointId id, std::function<void()> tick);
  // A view reaches a core up to options.view_delay late.
  absl::Duration ViewDelay() { return options.view_delay * random.NextDouble(); }

  const job::ResolvedJob& plan;
  const WorldOptions options;
  Observer nobody;  // used if no observer is given
  Observer& observer;
  Agenda agenda;
  Processes processes;
  EventTrace trace;
  Random random;
  HeapBufferSource buffers;
  absl::Status failure;
  int full_disks = 0;  // errors of SimCheckpoints because the disk was full
};

// The time between two heartbeats of a process.
inline constexpr absl::Duration kSimBeat = absl::Seconds(1);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_SIM_CONTEXT_H_
