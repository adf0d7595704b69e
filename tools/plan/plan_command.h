// tandem plan: prints a table of estimates of a job for each synchroniser, policy and placement
// (tools/plan/estimate.h), a recommendation with its reason, and the conditions under which another
// strategy would be the fastest. Runs nothing and changes nothing.
#ifndef TANDEM_TOOLS_PLAN_PLAN_COMMAND_H_
#define TANDEM_TOOLS_PLAN_PLAN_COMMAND_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tandem::plan {

struct PlanFlags {
  std::string job;
  std::vector<std::string> set;
  std::string calibrate;       // folder of a live run for times and tables; empty: the flags below
  double step_seconds = 0.01;  // compute time of a step
  double latency_seconds = 0.0001;
  double bytes_per_second = 0;  // of each process; 0 = no limit
  bool all = false;             // print all strategies, not only the best of each kind
};

void AddPlan(CLI::App* app, PlanFlags* flags);

// Returns the exit code: 0, or 2 if the job, the data or a flag is refused.
int PlanCommand(const PlanFlags& flags);

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_PLAN_COMMAND_H_
