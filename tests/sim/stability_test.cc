// Constant delay on a quadratic: the step size at which plain SGD stops converging is known
// exactly, 2 sin(pi / (2 (2 delay + 1))) / curvature, and with heavy-ball momentum numerically. The
// range of a real shard, its policy and its optimizer must show the same limit: just below it they
// converge, just above they diverge.
#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "optim/optimizer.h"
#include "policies/policy.h"
#include "server/range.h"

namespace tandem {
namespace {

// |w| after descending on w * w / 2 from 1, as soon as it is plainly small or plainly large.
double Descend(const Optimizer& config, int delay) {
  job::TablePlan plan;
  plan.name = "w";
  plan.dim = 1;
  plan.expected_rows = 1;
  plan.initializer.set_kind(Initializer::CONSTANT);
  plan.initializer.set_scale(1);
  const std::unique_ptr<optim::RowOptimizer> optimizer = *optim::NewRowOptimizer(config);
  Policy fixed_delay;
  fixed_delay.set_kind(Policy::FIXED_DELAY);
  fixed_delay.set_delay(delay);
  const std::unique_ptr<policies::UpdatePolicy> policy =
      *policies::NewUpdatePolicy(fixed_delay, /*workers=*/1);
  server::TableContext table;
  table.plan = &plan;
  table.optimizer = optimizer.get();
  table.policy = policy.get();
  table.workers = 1;
  server::FoldScratch scratch;
  server::Range range(0, 0, 0, &table, &scratch);
  HeapBufferSource buffers;
  const uint64_t key = 7;
  double envelope = 1;  // largest of the last steps: the iterates swing
  for (int64_t step = 0; step < 400000; ++step) {
    server::HeldUpdate update;
    update.step = step;
    update.samples = 1;
    update.version_read = range.progress().version;
    EXPECT_EQ(update.version_read, step);
    update.keys = buffers.Alloc(sizeof key);
    update.keys.MutableAs<uint64_t>()[0] = key;
    update.values = buffers.Alloc(sizeof(float));
    range.store().Pull({&key, 1}, update.values.MutableAs<float>().first(1));  // gradient = w
    envelope = std::max(0.999 * envelope, std::abs(double{update.values.As<float>()[0]}));
    if (envelope < 1e-3 || envelope > 1e3) break;
    EXPECT_EQ(range.Admit(absl::UnixEpoch(), /*incarnation=*/1, step, std::move(update),
                          /*finished=*/false),
              server::Range::Admission::kAdmitted);
  }
  return envelope;
}

void ExpectLimit(Optimizer config, int delay, double limit) {
  config.set_learning_rate(0.95 * limit);
  EXPECT_LT(Descend(config, delay), 1e-3) << "delay " << delay << ", below " << limit;
  config.set_learning_rate(1.05 * limit);
  EXPECT_GT(Descend(config, delay), 1e3) << "delay " << delay << ", above " << limit;
}

TEST(StabilityTest, PlainSgdStopsConvergingWhereTheFormulaSays) {
  Optimizer sgd;
  sgd.set_kind(Optimizer::SGD);
  for (const int delay : {0, 1, 2, 3, 4, 8, 16, 32}) {
    ExpectLimit(sgd, delay, 2 * std::sin(M_PI / (2 * (2 * delay + 1))));
  }
}

// One step of delay divides the usable step size by 38: the first surprise of stale gradients.
TEST(StabilityTest, MomentumMakesDelayMuchWorse) {
  Optimizer momentum;
  momentum.set_kind(Optimizer::MOMENTUM);
  momentum.set_momentum(0.9);
  ExpectLimit(momentum, 0, 3.8);
  ExpectLimit(momentum, 1, 0.1);
  ExpectLimit(momentum, 2, 0.0512);
  ExpectLimit(momentum, 4, 0.0265);
  ExpectLimit(momentum, 8, 0.0139);
  ExpectLimit(momentum, 16, 0.0075);
}

}  // namespace
}  // namespace tandem
