// tandem simulate --problem: a synthetic problem that replaces a job's model and data, and
// its results.
#ifndef TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_
#define TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "data/planted.h"
#include "job/job.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct ProblemFlags {
  std::string kind;        // "quadratic", "tridiagonal", "clicks"; empty: the job's model
  int64_t parameters = 1;  // dense ones
  double curvature = 1, condition = 1;  // "quadratic": tools/sim/quadratic.h
  double start = 0;                     // "tridiagonal": the first parameter's initial value
  double noise = 0, until = 0;          // "quadratic", "tridiagonal"
  int64_t fields = 8, ids = 1000;       // "clicks": tools/sim/clicks.h
  double skew = data::kPlantedExponent;

  bool empty() const { return kind.empty(); }
};

void AddProblem(CLI::App* app, ProblemFlags* flags);

// INVALID_ARGUMENT, which names the flag or field: invalid numbers, flags of another problem, or a
// job in which a problem cannot replace the model.
absl::Status CheckProblem(const ProblemFlags& flags, const job::ResolvedJob& plan);

class Problem {
 public:
  virtual ~Problem() = default;
  // All workers' runners refer to the problem.
  virtual worker::MakeTaskRunner runners() = 0;
  // The results after the run: for summary.json, and as a line.
  virtual nlohmann::json Json() const = 0;
  virtual std::string Text() const = 0;
};

struct ProblemRun {
  int64_t steps = 0;   // of each worker, in an epoch
  double seconds = 0;  // virtual time after which no worker begins another step; 0: no limit
  std::function<absl::Duration()> now;  // virtual time; called while workers run
};

// Requires: CheckProblem returned OK. `plan` must outlive the problem.
std::unique_ptr<Problem> NewProblem(const ProblemFlags& flags, const ProblemRun& run,
                                    const job::ResolvedJob& plan);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_
