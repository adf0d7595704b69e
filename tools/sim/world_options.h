// The options of a simulated world: network, speeds, accidents.
#ifndef TANDEM_TOOLS_SIM_WORLD_OPTIONS_H_
#define TANDEM_TOOLS_SIM_WORLD_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/scheduler_core.h"
#include "server/record/order_file.h"
#include "tools/sim/checkpoint_files.h"
#include "tools/sim/network.h"
#include "worker/task_runner.h"

namespace tandem::sim {

// A checkpoint of an earlier attempt of the run. The world resumes from it as a live run does.
struct ResumeFrom {
  std::string folder;             // on disk (server/checkpoint/checkpoint_directory.h)
  int64_t step = 0;               // Manifest::step
  RunRecord record;               // CheckpointReader::ReadRecord
  std::vector<uint64_t> held;     // by table: updates (worker, step, range) that it holds back
  std::vector<uint64_t> rows;     // by table
  bool other_ranges = false;      // the checkpoint cuts some table into other ranges than the world
  bool delayed_finished = false;  // of the end of the run: the rows have all delayed updates
};

struct WorldOptions {
  uint64_t seed = 1;
  NetworkOptions network;
  // Seed of step times. nullopt: made from the seeds of the world and of the job.
  absl::optional<uint64_t> service_seed;
  uint64_t run = 0;  // number of the run, in the names of checkpoints
  // An attempt of a run whose processes die: its number, and the checkpoint that it resumes from,
  // if any.
  int64_t attempt = 0;
  absl::optional<ResumeFrom> resume;
  // Compute time of a step of a worker without fault_injection.slow_workers.
  absl::Duration compute = absl::Milliseconds(10);
  std::vector<absl::Duration> min_compute;             // by rank: minimum of a step; empty: none
  worker::MakeTaskRunner make_runner;                  // workers compute with these
  absl::Duration fetch = absl::Microseconds(300);      // reading a batch
  absl::Duration view_delay = absl::Milliseconds(30);  // a view reaches a node at most this late
  // Messages to and from the scheduler take .3 ms. With this each takes an additional random time.
  bool control_jitter = true;
  double moves_per_second = 0;                            // of ranges, to random shards
  double barrier_drop = 0;                                // of entries and releases
  double breaks_per_second = 0;                           // breaks of links to the scheduler
  absl::Duration break_length = absl::Milliseconds(200);  // mean
  // times at which to request a checkpoint
  std::vector<absl::Duration> checkpoints;
  bool checkpoint_at_end = false;
  // The disk is full at these writes of files of checkpoints and at these commits, from 0.
  std::set<int64_t> no_room;
  // With a quorum: in each checkpoint the dense part of all workers is killed and resumes from its
  // saved state, unless another checkpoint or the end of an epoch runs at the same time.
  bool resume_dense = false;
  // How many dead workers a supervisor starts again in their places, if the scheduler allows it.
  int replacements = 0;
  // Each server has a memory budget (server/rows/memory_budget.h) with so many bytes for rows, and
  // as many more as held updates and copies need at most. 0: no budget. Rows of AT_BUDGET stop
  // `row_slack` bytes earlier, because memory grows by pages and other tables may need it later.
  size_t row_bytes = 0, row_slack = 0;
  absl::Duration start_time = absl::Seconds(2);  // a new process registers at most this late
  CheckpointFiles* files = nullptr;  // receives checkpoints; may be null; must outlive the world
  bool evaluate = true;
  // By range: the order of a run of the same job and model, which this run must
  // repeat (World::order).
  std::shared_ptr<const std::map<uint32_t, std::vector<server::OrderEntry>>> replay;
  // Short, so that faults cost little virtual time. Small, so that most requests need
  // several frames.
  absl::Duration resend = absl::Milliseconds(300);  // silence before a frame is sent again
  size_t frame_bytes = 32;                          // of values in a frame
  // Gets each notice of the scheduler, and its virtual time since the beginning.
  std::function<void(absl::Duration at, const scheduler::SchedulerNotice& notice)> on_notice;
  std::function<bool()> stopped;  // called after each event; true: Run ends with CANCELLED
  absl::Duration tick = absl::Milliseconds(50);
  absl::Duration limit = absl::Minutes(10);
  size_t trace_lines = 300;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_WORLD_OPTIONS_H_
