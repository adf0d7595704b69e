// tandem simulate --problem: a synthetic problem that replaces a job's model and data, and
// its results.
#ifndef TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_
#define TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "data/planted.h"
#include "job/job.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct ProblemFlags {
  std::string kind;                                // "quadratic", "clicks"; empty: the job's model
  int64_t parameters = 1;                          // dense ones
  double curvature = 1, condition = 1, noise = 0;  // "quadratic": tools/sim/quadratic.h
  int64_t fields = 8, ids = 1000;                  // "clicks": tools/sim/clicks.h
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

// `steps`: steps of each worker in an epoch. Requires: CheckProblem returned OK. `plan` must
// outlive the problem.
std::unique_ptr<Problem> NewProblem(const ProblemFlags& flags, int64_t steps,
                                    const job::ResolvedJob& plan);

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_COMMAND_PROBLEM_H_
