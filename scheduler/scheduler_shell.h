// The scheduler process: runs a SchedulerCore over a transport, with one thread and a tick every
// 100 ms, and writes files and events.
//
// Events for the program that started the job, one JSON object a line on `progress`:
//   {"event":"http","url":"http://..."}            where the job can be watched, if anywhere
//   {"event":"address","address":"tcp://..."}      the scheduler's address for nodes
//   {"event":"started","since":...,"seconds":...}  all nodes have registered and know the view; the
//                                                  run has started to train at the time of day
//                                                  `since`, and has trained for `seconds`
//   {"event":"progress", ...}                      each reporting interval, as in metrics.jsonl
//   {"event":"evaluation", ...}
//   {"event":"saved","step":...}                   a checkpoint during the job, of all steps before
//   {"event":"resumed","step":...,"attempt":...}   the run resumes from that step
//   {"event":"ending"}                             the job ends well, or because a user has asked
//   {"event":"recovered","seconds":...,"step":...}  all have finished a step after a restart
//   {"event":"vacant","node":...,"reason":...,"step":...}  a worker has died: start it again, in
//                                                  its place; step -1: it has reported no error
//   {"event":"replaced","node":...,"seconds":...,"step":...,"steps_again":...}  it trains again
//   {"event":"log","text":...}                     lines that the user should see
//   {"event":"stall","node":...,"text":...}, {"event":"stall_over","node":...}
//   {"event":"failed","node":...,"reason":...,"code":...}, {"event":"stopped"} (a tool has asked
//                                                  for the end at once)  or  {"event":"finished"}
// The events of the last line come last.
// "failed" has "step" if it is known, "comes_again" if a new attempt would fail in the same way,
// and "damaged_checkpoint" (the name of its folder) if the checkpoint could not be loaded.
// If the user has ended the job, "finished" has "checkpointed_step" (-1: none), "why" and, if the
// checkpoint failed, "failure". "stopped" has the first two.
//
// The whole log goes to stderr. Files in `out_dir` (made if absent): address (of the scheduler),
// http (where the job can be watched, if it can), run (number of the run, and how often it was
// resumed), metrics.jsonl (a line for each start, reporting interval, evaluation and checkpoint),
// counters.json (counter_file.h) and, at the end of the job, good or bad, summary.json.
#ifndef TANDEM_SCHEDULER_SCHEDULER_SHELL_H_
#define TANDEM_SCHEDULER_SCHEDULER_SHELL_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "job/job.h"
#include "scheduler/failure/restarts.h"
#include "scheduler/scheduler_core.h"
#include "transport/job_keys.h"
#include "transport/transport.h"

namespace tandem::scheduler {

struct SchedulerOptions {
  job::ResolvedJob plan;
  std::string bind = "tcp://127.0.0.1:*";
  std::string advertised_host;                     // needed if `bind` names all hosts
  std::shared_ptr<const transport::JobKeys> keys;  // of the job's token; null: it has none
  std::string out_dir;                             // empty = no files, not even the address
  std::string http;         // HOST:PORT to serve the job's status at; empty: nowhere
  std::string tensorboard;  // folder of an event file; empty: none
  ModelPaths models;        // paths that every node can reach
  MemoryEstimate estimate;  // for the status
  Restarts restarts;
  // How many workers the program that has started the roles would start again, each in the place of
  // a dead one (replacements.h).
  int replacements = 0;
  // The read end of a pipe from that program, non-blocking and not owned; -1: none. A line says
  // that a worker's process has ended: {"worker":1,"pid":4711,"text":"was ended by signal 9"}.
  int driver_fd = -1;
  // The process that has started this one: the agent of rank 0, or a Python program. If it dies,
  // the job ends, and all nodes and agents learn of it. 0: nobody is watched.
  pid_t driver = 0;
  bool by_hand = false;           // no program that could resume the run has started the roles
  std::FILE* progress = nullptr;  // not owned; null = no events
  // Gets each event if there is no `progress`. Called on the thread that runs the scheduler.
  std::function<void(const nlohmann::json& event)> on_event;
  const std::atomic<bool>* abort = nullptr;  // set by a signal handler: end the job at once
  // Each increment is a request to end. The first writes a checkpoint and ends, the second ends at
  // once.
  const std::atomic<int>* ends = nullptr;
  // each change requests a checkpoint to models.checkpoint_folder
  const std::atomic<int>* checkpoint = nullptr;
  std::function<void()> on_started;  // called when all nodes have loaded the initial model
  uint64_t incarnation = 1;          // of this process, for frame headers
  std::string launch;                // for agents: the launch that has started the scheduler
  SchedulerTimes times;
};

// Runs the scheduler until the job has ended. OK: the job finished. Otherwise the error names the
// failed node and the reason: "worker 1: NaN loss at step 7". CANCELLED if the user has ended the
// job. Other errors say why the scheduler itself could not run (address, files).
absl::Status RunScheduler(const SchedulerOptions& options);

// The same on a transport of the caller. `transport_name` is written to the summary.
absl::Status ServeJob(const SchedulerOptions& options, transport::Transport& transport,
                      absl::string_view transport_name);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SCHEDULER_SHELL_H_
