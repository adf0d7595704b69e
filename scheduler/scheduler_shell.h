// Runs a SchedulerCore over a transport: one thread, a tick every 100 ms, files and events.
//
// Events for whoever started the job, one JSON object a line on `progress`:
//   {"event":"address","address":"tcp://..."}      first; where nodes find the scheduler
//   {"event":"started"}                            all nodes are there and know the view
//   {"event":"progress", ...}                      each reporting interval, as in metrics.jsonl
//   {"event":"evaluation", ...}
//   {"event":"saved","step":...}                   a save on the way, of the steps before this one
//   {"event":"resumed","step":...,"attempt":...}   the run goes on there
//   {"event":"log","text":...}                     what the user should see; all else is in the log
//   {"event":"stall","node":...,"text":...}, {"event":"stall_over","node":...}
//   {"event":"failed","node":...,"reason":...,"code":...}  or  {"event":"finished"}    last
//   The latter with "saved_step" (-1: none), and "failure" if it could not be saved, if the job was
//   told to end before its end.
// The whole log goes to stderr.
// Files under `out_dir` (made if absent): address (where it listens), run (its number, and how often
// it has gone on from a save), metrics.jsonl (a line a reporting interval, evaluation and save), and,
// at the end, good or bad, summary.json.
#ifndef TANDEM_SCHEDULER_SCHEDULER_SHELL_H_
#define TANDEM_SCHEDULER_SCHEDULER_SHELL_H_

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "job/job.h"
#include "scheduler/scheduler_core.h"
#include "transport/transport.h"

namespace tandem::scheduler {

struct SchedulerOptions {
  job::JobPlan plan;
  std::string bind = "tcp://127.0.0.1:*";
  std::string advertised_host;    // needed if `bind` names all hosts
  std::string out_dir;            // empty = no files, the address among them
  ModelPaths models;              // paths that every node can reach
  std::FILE* progress = nullptr;  // not owned; null = no events
  // Where there is no `progress`: gets each event, on the thread that serves.
  std::function<void(const nlohmann::json& event)> on_event;
  const std::atomic<bool>* abort = nullptr;  // set by a signal handler: end the job at once
  const std::atomic<int>* ends = nullptr;    // each time it grows: end; first save, then at once
  const std::atomic<int>* save = nullptr;    // each change asks for a save to models.save_to
  std::function<void()> on_started;          // all nodes have loaded what the job begins with
  uint64_t incarnation = 1;                  // of this process, in frame headers
  SchedulerTimes times;
};

// Serves the job until it has ended. Ok: it finished. Otherwise why it failed, naming the node:
// "worker 1: NaN loss at step 7"; CANCELLED if it was aborted; or why the scheduler itself could
// not run (address, files).
absl::Status RunScheduler(const SchedulerOptions& options);

// The same on a transport that the caller has made; `transport_name` goes into the summary.
absl::Status ServeJob(const SchedulerOptions& options, transport::Transport& transport,
                      absl::string_view transport_name);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SCHEDULER_SHELL_H_
