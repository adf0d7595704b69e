// tandem simulate --problem: what computes in the place of a job's model and data, and what is said of it.
#ifndef TANDEM_CLI_PROBLEM_H_
#define TANDEM_CLI_PROBLEM_H_

#include <cstdint>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "data/planted.h"
#include "job/job.h"
#include "worker/task_runner.h"

namespace tandem::cli {

struct ProblemFlags {
  std::string kind;                                // "quadratic", "clicks"; empty: the job's model
  int64_t parameters = 1;                          // dense ones
  double curvature = 1, condition = 1, noise = 0;  // of the first: sim/quadratic.h
  int64_t fields = 8, ids = 1000;                  // of the second: sim/clicks.h
  double skew = data::kPlantedExponent;

  bool empty() const { return kind.empty(); }
};

void AddProblem(CLI::App* app, ProblemFlags* flags);

// INVALID_ARGUMENT, naming the flag or field: numbers that make no sense, flags of a problem that is not asked
// for, a job that no problem can be put into.
absl::Status CheckProblem(const ProblemFlags& flags, const job::JobPlan& plan);

class Problem {
 public:
  virtual ~Problem() = default;
  // All workers' runners refer to the problem.
  virtual worker::MakeTaskRunner runners() = 0;
  // After the run: for summary.json, and in a line.
  virtual nlohmann::json Json() const = 0;
  virtual std::string Text() const = 0;
};

// `steps`: of each worker, in an epoch. What CheckProblem takes; `plan` outlives it.
std::unique_ptr<Problem> NewProblem(const ProblemFlags& flags, int64_t steps,
                                    const job::JobPlan& plan);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROBLEM_H_
