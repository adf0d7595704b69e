// tandem simulate: a job without its cluster. The cores that run in live processes run in one process under
// a virtual clock (sim/world.h): workers compute real gradients on real data, one after the other; what
// takes time takes as long as the job's service_time, the step and the network say. The same seed gives
// the same run, bit for bit, on any machine (docs/SIMULATE.md).
//
// Who makes the task runners brings LibTorch; nothing here knows it.
#ifndef TANDEM_CLI_SIMULATOR_H_
#define TANDEM_CLI_SIMULATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "cli/problem.h"
#include "job/job.h"
#include "worker/task_runner.h"

namespace tandem::cli {

struct SimulateFlags {
  std::string job;
  std::vector<std::string> set;
  std::string out;  // empty: a new one under out/
  bool overwrite = false;
  bool save = true;
  std::string calibrate;            // folder of a live run whose times hold; empty: the three below
  double step_seconds = 0.01;       // of workers without a service_time
  double latency_seconds = 0.0001;  // of every frame
  double bytes_per_second = 0;      // of each process, either way; 0 = no limit
  bool timing_only = false;         // no data, rows or gradients: sim/timing.h
  int64_t steps = 0;  // of each worker, with that; 0: the job's train.max_steps, or 1,000
  double seconds =
      0;  // likewise: of virtual time, and then it is over; 0: when the steps are taken
  double step_bytes = 0;   // likewise: of rows that a step reads, and of gradients that it pushes
  double dense_bytes = 0;  // likewise: that an allreduce sums
  ProblemFlags problem;    // in the place of model and data
  std::string replay;      // folder of a run whose order this one takes; empty: none
  std::string command;     // as it was typed, for the summary

  bool without_model() const { return timing_only || !problem.empty(); }
};

// False if the program is to end with *exit_code: help was asked for, or a flag makes no sense. argv[0] does not count.
bool ParseSimulate(int argc, char** argv, SimulateFlags* flags, int* exit_code);

// That the job, and the data that it names, can be simulated here.
absl::Status CheckSimulated(const job::JobPlan& plan);
// INVALID_ARGUMENT for flags that make no sense, or not with this job: times and rates that no run can have, or
// in which the job would give up; a problem that nobody can compute; what is not simulated.
absl::Status CheckFlags(const SimulateFlags& flags, const job::JobPlan& plan);

// Returns the exit code, as `tandem run`. `make_runner` may be null if flags.without_model().
int Simulate(const SimulateFlags& flags, const worker::MakeTaskRunner& make_runner);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_SIMULATOR_H_
