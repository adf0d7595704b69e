// tandem plan: what a job would cost under each synchroniser, policy and placement (plan/estimate.h), as
// a table, with what it would take, why, and what would change its mind. It proposes; it runs nothing
// and changes nothing.
#ifndef TANDEM_CLI_PLAN_COMMAND_H_
#define TANDEM_CLI_PLAN_COMMAND_H_

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tandem::cli {

struct PlanFlags {
  std::string job;
  std::vector<std::string> set;
  std::string calibrate;       // folder of a live run whose times and tables hold; empty: the flags
  double step_seconds = 0.01;  // what a step computes
  double latency_seconds = 0.0001;
  double bytes_per_second = 0;  // of each process; 0 = no limit
  bool all = false;             // every way, not only the best of each kind
};

void AddPlan(CLI::App* app, PlanFlags* flags);

// Returns the exit code: 0, or 2 for a job, data or flags that are refused.
int PlanCommand(const PlanFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PLAN_COMMAND_H_
