// A quadratic problem with a known solution, which replaces a job's model and data. The loss is
// half the sum over all weights of curvature times weight squared. The gradient of a weight is
// curvature times weight, plus optional noise. Each table has one row. The weights of a row, and
// the dense parameters, have curvatures from `curvature` down to `curvature` / `condition`, in
// equal ratios. Each weight therefore evolves independently under the job's policy and optimizer,
// and the largest stable step for a staleness can be calculated.
//
// Thread safety: the same as worker::TaskRunner.
#ifndef TANDEM_TOOLS_SIM_QUADRATIC_H_
#define TANDEM_TOOLS_SIM_QUADRATIC_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/task_runner.h"

namespace tandem::sim {

struct QuadraticOptions {
  double curvature = 1;
  double condition = 1;  // largest curvature over the smallest
  double noise = 0;      // standard deviation of the noise of each element of a gradient
  int64_t dense = 1;     // parameters
  double first = 1;      // initial value of each; rows have the initial value of their table
  int64_t steps = 0;     // of each worker, in an epoch
  uint64_t seed = 1;     // of the noise
};

// The mean loss over the first step of each worker, and over the last tenth of their steps.
struct QuadraticLosses {
  double first_sum = 0, last_sum = 0;
  int64_t first_count = 0, last_count = 0;
  double first() const {
    return first_count == 0 ? 0 : first_sum / static_cast<double>(first_count);
  }
  double last() const { return last_count == 0 ? 0 : last_sum / static_cast<double>(last_count); }
  // The loss ends far above its beginning.
  bool diverged() const { return !(last() <= 2 * first()); }
};

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
                 absl::Span<float> gradient) const;

  const job::ResolvedJob& plan_;
  const int rank_;
  const QuadraticOptions options_;
  QuadraticLosses* const losses_;
  const std::unique_ptr<worker::DenseParameters> dense_;
  int64_t epoch_ = -1, fetched_ = 0;  // batches of that epoch
  int64_t computed_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_QUADRATIC_H_
