#include "worker/step_order.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "policies/policy.h"
#include "policies/properties.h"

namespace tandem {
namespace {

using worker::StepOrder;
using Act = StepOrder::Act;

// A worker whose fetches, pulls and computations end at once. The test decides its data, its
// clocks, and when servers acknowledge its pushes.
class StepOrderTest : public ::testing::Test {
 public:
  // The gate.
  int64_t pushes() const { return unacknowledged_; }
  void AwaitPush() { ++awaits_; }
  int groups() const { return static_cast<int>(policies_.size()); }
  const policies::UpdatePolicy& policy(int group) const {
    return *policies_[static_cast<size_t>(group)];
  }
  int64_t told(int) const { return told_; }
  void Refused(int group) { refused_ = group; }

 protected:
  void Begin(const StepOrder::Options& options, const StepOrder::Epoch& epoch = {}) {
    order_ = std::make_unique<StepOrder>(options);
    order_->StandAt(epoch.first_step);
    order_->Begin(epoch);
  }
  void AddPolicy(Policy::Kind kind, int bound = 0) {
    Policy policy;
    policy.set_kind(kind);
    policy.set_bound(bound);
    policies_.push_back(*policies::NewUpdatePolicy(policy, 2));
  }
  // Acts until Next returns kNothing. Returns the acts as "fetch 0, read 0, ...".
  std::string Run(int64_t hold_from = policies::kUnbounded) {
    std::string acts;
    for (Act act = Next(hold_from); act != Act::kNothing; act = Next(hold_from)) {
      acts += (acts.empty() ? "" : ", ") + Do(act, hold_from);
      if (order_->over()) break;
    }
    return acts;
  }
  Act Next(int64_t hold_from) { return order_->Next(hold_from, *this); }
  std::string Do(Act act, int64_t hold_from) {
    const auto of = [](const char* what, int64_t step) {
      return what + std::string(" ") + std::to_string(step);
    };
    const int64_t step = order_->step();
    switch (act) {
      case Act::kNothing:
        break;
      case Act::kPush:
        order_->Pushed(waits_);
        return of("push", step);
      case Act::kDrop:
        order_->Drop();
        return of("drop", step);
      case Act::kEnd:
        order_->End();
        return of("end", step);
      case Act::kSkip:
        order_->Skip(order_->skips_to(hold_from));
        if (waits_) order_->AwaitSkipped();
        return of("skip to", order_->step());
      case Act::kFetch: {
        const int64_t fetched = order_->next_fetch();
        if (!order_->BeginFetch()) return of("exhausted", fetched);
        order_->OnFetched(batches_-- > 0);
        return of("fetch", fetched);
      }
      case Act::kRead: {
        const int64_t read = order_->next_read();
        order_->BeginRead();
        if (answers_) order_->OnRows(order_->SlotOf(read));
        return of("read", read);
      }
      case Act::kStart:
        order_->Start();
        if (computes_) order_->OnComputed();
        return of("start", step);
      case Act::kFinish:
        order_->Finish(empty_);
        return of("finish", step);
    }
    return "";
  }

  std::unique_ptr<StepOrder> order_;
  std::vector<std::unique_ptr<policies::UpdatePolicy>> policies_;
  int64_t told_ = 0, unacknowledged_ = 0;
  int batches_ = 1;
  int awaits_ = 0, refused_ = -1;
  bool waits_ = false, answers_ = true, computes_ = true, empty_ = false;
};

TEST_F(StepOrderTest, AStepAfterAnother) {
  batches_ = 2;
  Begin({});
  EXPECT_EQ(
      Run(),
      "fetch 0, fetch 1, read 0, start 0, push 0, read 1, finish 0, fetch 2, start 1, push 1, "
      "finish 1, exhausted 3, end 2");
  EXPECT_TRUE(order_->over());
  EXPECT_EQ(order_->pushed(), 2);
}

TEST_F(StepOrderTest, ReadsGoAheadByTheDepthAndFetchesByOneMore) {
  batches_ = 100;
  computes_ = false;
  Begin({.depth = 2, .slots = 4});
  EXPECT_EQ(Run(), "fetch 0, fetch 1, fetch 2, fetch 3, read 0, read 1, read 2, start 0");
  EXPECT_EQ(order_->InFlight(5), 8) << "three read, five not acknowledged";
  EXPECT_TRUE(order_->computing());
  order_->OnComputed();
  EXPECT_EQ(Run(), "push 0, read 3, finish 0, fetch 4, start 1");
}

TEST_F(StepOrderTest, SlotsAreUsedInTurn) {
  batches_ = 5;
  Begin({.depth = 1, .slots = 7});
  std::vector<int> slots;
  for (int64_t step = 0; step < 5; ++step) {
    while (order_->step() < step) Do(Next(policies::kUnbounded), policies::kUnbounded);
    slots.push_back(order_->SlotOf(step));
    EXPECT_EQ(order_->SlotOf(step + 2), (slots.back() + 2) % 7);
  }
  EXPECT_EQ(slots, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_F(StepOrderTest, PoliciesAreAskedLast) {
  AddPolicy(Policy::ASP);
  AddPolicy(Policy::SSP, 1);
  batches_ = 10;
  Begin({});
  Run();
  EXPECT_EQ(order_->step(), 2) << "one step ahead of a clock of 0";
  EXPECT_EQ(refused_, 1);
  EXPECT_EQ(order_->clock_gap(), 1);
  told_ = 4;
  Run();
  EXPECT_EQ(order_->step(), 6);
}

TEST_F(StepOrderTest, PushesInFlightAreBounded) {
  batches_ = 10;
  Begin({.max_in_flight = 3});
  unacknowledged_ = 3;
  Run();
  EXPECT_EQ(order_->step(), 0);
  EXPECT_EQ(awaits_, 1);
  unacknowledged_ = 2;
  Run();
  EXPECT_TRUE(order_->over());
}

TEST_F(StepOrderTest, AStepWaitsForTheSynchronisationOfTheStepBefore) {
  batches_ = 10;
  waits_ = true;
  Begin({});
  EXPECT_EQ(Run(), "fetch 0, fetch 1, read 0, start 0, push 0, read 1");
  EXPECT_TRUE(order_->synchronising());
  order_->OnSynchronised();
  EXPECT_EQ(Run(), "finish 0, fetch 2, start 1, push 1, read 2");
}

// A step at or after a checkpoint neither begins nor is pushed.
TEST_F(StepOrderTest, StepsAreHeld) {
  batches_ = 10;
  computes_ = false;
  Begin({});
  EXPECT_EQ(Run(0), "fetch 0, fetch 1, read 0");
  EXPECT_EQ(Run(), "start 0");
  order_->OnComputed();
  EXPECT_EQ(Run(0), "");
  EXPECT_EQ(Run(1), "push 0, read 1, finish 0, fetch 2");
}

TEST_F(StepOrderTest, AStepThatIsTakenBackStartsAgain) {
  batches_ = 10;
  computes_ = false;
  Begin({});
  Run();
  order_->TakeBack();
  order_->OnComputed();
  EXPECT_EQ(Run(0), "");
  EXPECT_EQ(Run(), "start 0");
}

TEST_F(StepOrderTest, SkippedStepsGiveTheirBatchesToLaterSteps) {
  batches_ = 10;
  answers_ = false;
  Begin({.depth = 1, .slots = 3}, {.limit = 6});
  EXPECT_EQ(Run(), "fetch 0, fetch 1, fetch 2, read 0, read 1");
  const int slot = order_->SlotOf(0);
  order_->OnOpenStep(4);
  EXPECT_EQ(Run(/*hold_from=*/3), "skip to 3, read 3, read 4");
  answers_ = true;
  EXPECT_EQ(Run(),
            "skip to 4, read 4, read 5, start 4, push 4, finish 4, exhausted 7, start 5, "
            "push 5, finish 5, exhausted 8, end 6");
  EXPECT_EQ(order_->SlotOf(6), (slot + 2) % 3) << "two steps were not skipped";
}

TEST_F(StepOrderTest, ABeginningStepWaitsForTheSynchronisationOfSkippedSteps) {
  batches_ = 10;
  waits_ = true;
  Begin({});
  Run(0);
  order_->OnOpenStep(2);
  EXPECT_EQ(Run(), "skip to 2, read 2");
  EXPECT_TRUE(order_->skipping());
  order_->OnSynchronised();
  EXPECT_EQ(Run(), "finish 2, start 2, push 2, read 3");
}

TEST_F(StepOrderTest, StepsOfADeadProcessAreDropped) {
  batches_ = 3;
  Begin({}, {.first_step = 5, .first_trained = 7});
  EXPECT_EQ(
      Run(),
      "fetch 5, drop 5, fetch 6, drop 6, fetch 7, fetch 8, read 7, start 7, push 7, finish 7, "
      "exhausted 9, end 8");
}

// A lockstep worker without data continues until the synchronisation tells that nobody has any ...
TEST_F(StepOrderTest, LockstepEpochsEndWithAnEmptyStep) {
  batches_ = 0;
  waits_ = true;
  Begin({.lockstep = true});
  EXPECT_EQ(Run(), "fetch 0, exhausted 1, read 0, start 0, push 0, read 1");
  EXPECT_FALSE(order_->MayTellEnd(0));
  EXPECT_TRUE(order_->MayTellEnd(1));
  empty_ = true;
  order_->OnSynchronised();
  EXPECT_EQ(Run(), "finish 0, end 1");
}

// ... or until the policies tell so. One more synchronisation may follow.
TEST_F(StepOrderTest, LockstepEpochsMayEndWithASynchronisation) {
  batches_ = 0;
  Begin({.lockstep = true}, {.syncs_at_end = true});
  answers_ = false;
  Run();
  order_->OnEmptyStep();
  EXPECT_FALSE(order_->ends());
  order_->OnRows(order_->SlotOf(0));
  EXPECT_EQ(Run(), "start 0, push 0, read 1, finish 0, end 1");
  EXPECT_TRUE(order_->last());
}

}  // namespace
}  // namespace tandem
