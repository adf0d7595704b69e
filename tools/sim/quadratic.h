// Quadratic problems with a known solution, which replace a job's model and data. Gradients may
// have Gaussian noise. There are two kinds:
//
// (1) Diagonal. The loss is half the sum over all weights of curvature times weight squared. Each
// table has one row. The weights of a row, and the dense parameters, have curvatures from
// `curvature` down to `curvature` / `condition`, in equal ratios. Each weight therefore evolves
// independently under the job's policy and optimizer, and the largest stable step for a staleness
// can be calculated.
//
// (2) Tridiagonal, of dense parameters x alone. The loss is f(x) - min f, where
//
//   f(x) = x A x / 2 - b x,   A = tridiag(-1, 2, -1) / 4,   b = (-1, 0, ..., 0) / 4
//
// The largest eigenvalue of A is below 1, and the smallest falls with the square of the dimension.
// Papers on asynchronous SGD compare methods on this problem: Tyurin and Richtarik 2023, "Optimal
// time complexities of parallel stochastic optimization methods under a fixed computation model"
// (Rennala SGD); Maranjyan et al. 2025, "Ringmaster ASGD: the first asynchronous SGD with optimal
// time complexity".
//
// Thread safety: the same as worker::TaskRunner.
#ifndef TANDEM_TOOLS_SIM_QUADRATIC_H_
#define TANDEM_TOOLS_SIM_QUADRATIC_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct QuadraticOptions {
  bool tridiagonal = false;
  double curvature = 1;
  double condition = 1;  // largest curvature over the smallest
  double noise = 0;      // standard deviation of the noise of each element of a gradient
  int64_t dense = 1;     // parameters
  // Initial value of each dense parameter; of a tridiagonal problem the first one, and the others
  // begin at 0. Rows have the initial value of their table.
  double first = 1;
  int64_t steps = 0;  // of each worker, in an epoch
  uint64_t seed = 1;  // of the noise
  // No worker begins another step after `seconds`, or once the loss is at most this share of the
  // loss before the first update. 0: that does not end the run.
  double seconds = 0, until = 0;
  std::function<absl::Duration()> now;  // virtual time; must be set
};

// The losses that all workers have computed. A step reads the model when it begins to compute, so
// its loss is of that time.
struct QuadraticLosses {
  double first_sum = 0, last_sum = 0;  // of each worker's first step; of the last tenth of steps
  int64_t first_count = 0, last_count = 0;
  double before = 0;                       // before any update
  absl::optional<absl::Duration> begun;    // the first read
  absl::optional<absl::Duration> reached;  // the first read of a loss that ends the run
  absl::Duration latest_read;
  double latest = 0;  // the loss of that read

  double first() const {
    return first_count == 0 ? 0 : first_sum / static_cast<double>(first_count);
  }
  // A run that ends early may have no last tenth.
  double last() const {
    return last_count == 0 ? latest : last_sum / static_cast<double>(last_count);
  }
  // The loss ends far above its beginning.
  bool diverged() const { return !(last() <= 2 * first()); }
};

// f(x) - min f of the tridiagonal problem, computed from the distances to the minimum, so that no
// digits cancel. Writes its gradient, which has the length of `x`.
double TridiagonalLoss(absl::Span<const float> x, absl::Span<double> gradient);

class QuadraticRunner final : public worker::TaskRunner {
 public:
  // All workers add to `losses`. `plan` and `losses` must outlive the runner.
  static absl::StatusOr<std::unique_ptr<worker::TaskRunner>> New(const job::ResolvedJob& plan,
                                                                 int rank,
                                                                 const QuadraticOptions& options,
                                                                 QuadraticLosses* losses);

  worker::DenseParameters& dense() override { return *dense_; }
  bool has_test_data() const override { return false; }
  int64_t EstimatedRows() const override { return options_.steps * plan_.job.train().batch_size(); }
  absl::Status Fetch(worker::StepSlot* slot) override;
  absl::Status Compute(worker::StepSlot* slot) override;
  absl::Status FetchTest(worker::StepSlot*, bool, worker::HeldOut) override { return NoTest(); }
  absl::Status Score(worker::StepSlot*) override { return NoTest(); }
  absl::Status FillShare(EvaluationShare*, Buffer*) override { return NoTest(); }
  absl::StatusOr<std::string> MergeShares(const std::map<int, EvaluationShare>&,
                                          const std::map<int, Buffer>&) override {
    return NoTest();
  }

 private:
  QuadraticRunner(const job::ResolvedJob& plan, int rank, const QuadraticOptions& options,
                  QuadraticLosses* losses, std::unique_ptr<worker::DenseParameters> dense)
      : plan_(plan), rank_(rank), options_(options), losses_(losses), dense_(std::move(dense)) {}
  static absl::Status NoTest();
  double Descend(uint64_t noise_seed, double samples, absl::Span<const float> weights,
                 absl::Span<float> gradient);
  double DiagonalLoss(absl::Span<const float> weights, absl::Span<double> gradient) const;
  void Note(double loss, absl::Duration read, int64_t step);
  bool IsOver() const;

  const job::ResolvedJob& plan_;
  const int rank_;
  const QuadraticOptions options_;
  QuadraticLosses* const losses_;
  const std::unique_ptr<worker::DenseParameters> dense_;
  int64_t epoch_ = -1, fetched_ = 0;  // batches of that epoch
  int64_t computed_ = 0;
  std::vector<double> exact_;  // a gradient without noise; scratch
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_QUADRATIC_H_
