// What the last part of a worker's samples lost: exact while there are few steps, near
// it however many.
#include "worker/loss_history.h"

#include "gtest/gtest.h"

namespace tandem {
namespace {

using worker::LossHistory;

double MeanOfLast(const LossHistory& history, double share) {
  const LossHistory::Part part = history.Last(share);
  return part.loss / part.samples;
}

TEST(LossHistoryTest, IsExactForFewSteps) {
  LossHistory history;
  EXPECT_EQ(history.Last(0.1).samples, 0);
  for (int step = 1; step <= 20; ++step) history.Add(10.0 * step, 10);
  EXPECT_DOUBLE_EQ(history.Last(0.1).samples, 20);
  EXPECT_DOUBLE_EQ(MeanOfLast(history, 0.1), 19.5);
  EXPECT_DOUBLE_EQ(MeanOfLast(history, 1), 10.5);
  history.Add(0, 1);  // a short last batch
  EXPECT_NEAR(MeanOfLast(history, 0.1), (10 * 20 + 9.1 * 19) / 20.1, 1e-9);
}

TEST(LossHistoryTest, OfManyStepsItIsNearAndOfAllOfThem) {
  LossHistory history;
  constexpr int kSteps = 100'003;
  for (int step = 0; step < kSteps; ++step) history.Add(64.0 * step / kSteps, 64);
  EXPECT_NEAR(history.Last(0.1).samples, 6.4 * kSteps, 1e-3);
  EXPECT_NEAR(MeanOfLast(history, 0.1), 0.95, 1e-3);
  EXPECT_NEAR(MeanOfLast(history, 1), 0.5, 1e-4);
}

}  // namespace
}  // namespace tandem
