// A whole cluster in one process and one thread: the scheduler, server, shard and trainer cores of
// live processes, under a virtual clock and over a seeded network. Ranges may move between shards
// during the run. Workers compute with any TaskRunner (WorldOptions::make_runner).
//
// The parts are the scheduler and the connections to it (sim_scheduler.h), servers (sim_servers.h),
// workers (sim_workers.h), frames between them (data_frames.h), checkpoints (sim_checkpoints.h),
// and their shared state (sim_context.h). This class connects the parts and runs them. An observer
// (observer.h) may look on and check the run. A run that does not end within `limit` of virtual
// time fails with a list of waits.
//
// The same options give the same run, bit for bit (trace_hash).
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_WORLD_H_
#define TANDEM_TOOLS_SIM_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "job/job.h"
#include "tools/sim/data_frames.h"
#include "tools/sim/observer.h"
#include "tools/sim/sim_checkpoints.h"
#include "tools/sim/sim_context.h"
#include "tools/sim/sim_scheduler.h"
#include "tools/sim/sim_servers.h"
#include "tools/sim/sim_workers.h"
#include "tools/sim/world_options.h"

namespace tandem::sim {

class World {
 public:
  // `plan` must outlive the world.
  static absl::StatusOr<std::unique_ptr<World>> New(const job::ResolvedJob& plan,
                                                    const WorldOptions& options);
  virtual ~World() = default;

  // Runs the job to its end. An error has the waits of all processes, unless the run diverged.
  absl::Status Run();
  // The parts of Run: Begin, then RunNext until ended(), then Finish.
  void Begin();
  void RunNext();
  bool ended() const { return scheduler_.core().done() || !context_.failure.ok(); }
  absl::Status Finish();

  // For accidents and observers.
  struct Parts {
    SimContext& context;
    SimScheduler& scheduler;
    SimServers& servers;
    SimWorkers& workers;
  };
  Parts parts() { return {context_, scheduler_, servers_, workers_}; }

  // The last lines of the trace.
  std::string TraceText() const { return context_.trace.Text(); }
  uint64_t trace_hash() const { return context_.trace.hash(); }
  absl::Duration elapsed() const { return context_.agenda.elapsed(); }
  uint64_t event_count() const { return event_count_; }

  // After Run.
  const SimServers& servers() const { return servers_; }
  const SimWorkers& workers() const { return workers_; }
  const std::vector<server::UpdateRecord>& records() const { return servers_.records(); }
  const scheduler::JobReport& report() const { return scheduler_.core().report(); }

 protected:
  // Call Init before anything else. `observer` may be null; it must outlive the world's events.
  World(const job::ResolvedJob& plan, const WorldOptions& options, Observer* observer);
  absl::Status Init();

 private:
  SimContext context_;
  uint64_t event_count_ = 0;
  DataFrames frames_;
  SimScheduler scheduler_;
  SimCheckpoints checkpoints_;
  SimServers servers_;
  SimWorkers workers_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_WORLD_H_
