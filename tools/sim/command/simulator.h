// tandem simulate: runs a job without a cluster. The cores of the live processes run in one process
// under a virtual clock (tools/sim/world.h). Workers compute real gradients on real data, one after
// the other. Times come from the job's fault_injection.slow_workers and from the flags for steps
// and network. The same seed gives the same run, bit for bit, on any machine (docs/SIMULATE.md).
//
// This code does not depend on LibTorch. The caller, which makes the task runners, does.
#ifndef TANDEM_TOOLS_SIM_COMMAND_SIMULATOR_H_
#define TANDEM_TOOLS_SIM_COMMAND_SIMULATOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "job/job.h"
#include "tools/sim/command/problem.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct SimulateFlags {
  std::string job;
  std::vector<std::string> set;
  std::string out;  // empty: a new one under out/
  bool overwrite = false;
  bool checkpoint = true;
  std::string calibrate;            // folder of a live run for times; empty: the three flags below
  double step_seconds = 0.01;       // of workers that fault_injection.slow_workers does not name
  double latency_seconds = 0.0001;  // of every frame
  double bytes_per_second = 0;      // of each process, in each direction; 0 = no limit
  bool timing_only = false;         // no data, rows or gradients: tools/sim/timing.h
  int64_t steps = 0;  // of each worker, with timing_only or a problem; 0: train.max_steps, or 1,000
  // With timing_only, or a problem other than clicks: virtual time of the run; 0: until all steps
  // are taken.
  double seconds = 0;
  double step_bytes = 0;   // with timing_only: of rows that a step pulls, and gradients it pushes
  double dense_bytes = 0;  // with timing_only: summed by an allreduce
  ProblemFlags problem;    // replaces model and data
  std::string replay;      // folder of a run whose order is repeated; empty: none
  std::string command;     // as the user typed it, for the summary

  bool without_model() const { return timing_only || !problem.empty(); }
};

// False if the program must end with *exit_code: the user asked for help, or a flag is invalid.
// Ignores argv[0].
bool ParseSimulate(int argc, char** argv, SimulateFlags* flags, int* exit_code);

// Checks that the job and its data can be simulated here.
absl::Status CheckSimulated(const job::ResolvedJob& plan);
// INVALID_ARGUMENT for invalid flags, or flags that do not fit the job: impossible times and
// rates, times in which the job would give up, a problem that cannot be computed, a feature that
// is not simulated.
absl::Status CheckFlags(const SimulateFlags& flags, const job::ResolvedJob& plan);

// Returns the same exit codes as `tandem run`. `make_runner` may be null if flags.without_model().
int Simulate(const SimulateFlags& flags, const worker::MakeTaskRunner& make_runner);

// The command as the user called it, with argv[1] = "simulate". Without a model the simulation runs
// here, otherwise tandem-simulator replaces this process. Returns the exit code.
int SimulateCommand(int argc, char** argv);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_COMMAND_SIMULATOR_H_
