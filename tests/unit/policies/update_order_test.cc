// Tests UpdateOrder with policies that use all arguments of a policy: how many updates a push
// applied, and which updates one step of the optimizer applies together.
#include "policies/order/update_order.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using policies::Admission;
using policies::Arrival;
using policies::Buffered;
using policies::Group;
using policies::Properties;
using policies::Pushed;
using policies::RangeProgress;
using policies::Transform;
using policies::Update;
using ::testing::ElementsAre;

struct TestUpdate : Update {
  static constexpr bool kHasGradients = true;
  bool has_rows() const { return rows; }
  double gradient = 0;  // makes the updates of a group lie further apart than their numbers
  bool rows = true;
};

class TestPolicy : public policies::UpdatePolicy {
 public:
  std::string name() const override { return "TEST"; }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const RangeProgress&, int, int64_t, int) const override { return true; }
};

// Drops updates of an older version. The version counts the updates that were applied.
class OnlyFresh final : public TestPolicy {
 public:
  Properties properties() const override {
    Properties properties;
    properties.skips = true;
    return properties;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    return update.version_read == progress.version ? Arrival::kApply : Arrival::kDrop;
  }
  Transform OnApply(const RangeProgress&, const Update& update, const Group& group) const override {
    EXPECT_EQ(&group[0], &update);
    EXPECT_EQ(group.size(), 1u);
    EXPECT_EQ(group.samples(), update.samples);
    return {update.rank == 2 ? 0.0f : 1.0f};
  }
  int64_t Ticks(const RangeProgress&, const Buffered&, const Pushed& pushed) const override {
    return pushed.applied;
  }
};

// Batches of four updates, in which each worker has the same weight, however often it pushed.
class EqualWorkers final : public TestPolicy {
 public:
  Properties properties() const override {
    Properties properties;
    properties.holds = true;
    properties.batch = 4;
    return properties;
  }
  Arrival OnArrival(const RangeProgress&, const Update&) const override { return Arrival::kHold; }
  Transform OnApply(const RangeProgress&, const Update& update, const Group& group) const override {
    uint64_t own = 0;
    for (size_t i = 0; i < group.size(); ++i) {
      if (group[i].rank == update.rank) own += group[i].samples;
    }
    return {static_cast<float>(group.samples()) / static_cast<float>(own)};
  }
  int64_t Ticks(const RangeProgress&, const Buffered& buffered, const Pushed&) const override {
    return buffered.oldest >= 4 ? 1 : 0;
  }
};

struct Sink {
  explicit Sink(const policies::UpdatePolicy& policy) : order(policy, {.workers = 3}) {}

  Admission Push(int rank, uint64_t samples, int64_t version_read, bool rows = true,
                 bool finished = false) {
    TestUpdate update;
    update.rank = rank;
    update.step = order.progress().workers[static_cast<size_t>(rank)].admitted;
    update.samples = samples;
    update.version_read = version_read;
    update.rows = rows;
    return order.Admit(/*now_us=*/1, /*incarnation=*/1, update.step, std::move(update), finished,
                       this);
  }
  void OnAdmit(const TestUpdate&, int64_t, bool) {}
  void OnCounted(TestUpdate*) {}
  void Apply(const TestUpdate&, const Transform& transform) { factors.push_back(transform.factor); }
  bool Keeps(const TestUpdate& update) { return update.rows; }
  void Drop(const TestUpdate&) { ++dropped; }
  void Fold(const policies::HeldGroup<TestUpdate>& group) {
    for (const TestUpdate& update : group.updates) {
      factors.push_back(order.TransformOf(update, group.View()).factor);
    }
    folded.clear();
    for (const TestUpdate& update : group.updates) folded.push_back(update.rank);
  }
  void OnVersion() {}

  policies::UpdateOrder<TestUpdate> order;
  std::vector<float> factors;
  std::vector<int> folded;  // the ranks of the last group
  int dropped = 0;
};

TEST(UpdateOrderTest, AVersionMayCountTheUpdatesThatWereApplied) {
  const OnlyFresh policy;
  Sink sink(policy);
  EXPECT_EQ(sink.Push(0, 8, 0), Admission::kAdmitted);
  EXPECT_EQ(sink.order.progress().version, 1);
  EXPECT_EQ(sink.Push(1, 8, 0), Admission::kLate);
  EXPECT_EQ(sink.order.progress().version, 1) << "the update was dropped";
  EXPECT_EQ(sink.Push(1, 0, 1), Admission::kAdmitted);
  EXPECT_EQ(sink.order.progress().version, 1) << "the update has no samples";
  EXPECT_EQ(sink.Push(2, 8, 1), Admission::kAdmitted);
  EXPECT_EQ(sink.order.progress().version, 1) << "its factor is 0";
  EXPECT_EQ(sink.Push(1, 8, 1), Admission::kAdmitted);
  EXPECT_EQ(sink.order.progress().version, 2);
  EXPECT_THAT(sink.factors, ElementsAre(1, 1, 0, 1));
  EXPECT_EQ(sink.dropped, 1);
}

// Under RINGLEADER a group closes when it has an update of each worker that still has data. Updates
// without rows are listed, because they weigh.
TEST(UpdateOrderTest, AGroupMayNeedEachWorkerWithData) {
  Policy config;
  config.set_kind(Policy::RINGLEADER);
  const auto policy = *policies::NewUpdatePolicy(config, 3);
  Sink sink(*policy);
  const auto version = [&sink] { return sink.order.progress().version; };
  sink.Push(0, 2, 0);
  sink.Push(0, 2, 0, /*rows=*/false);
  sink.Push(2, 8, 0);
  sink.Push(0, 2, 0);
  EXPECT_EQ(sink.order.open_batch()->updates.size(), 4u);
  EXPECT_EQ(version(), 0);
  EXPECT_EQ(sink.order.progress().workers[0].applied, 0);
  sink.Push(1, 4, 0);
  EXPECT_EQ(version(), 1);
  EXPECT_THAT(sink.folded, ElementsAre(0, 0, 2, 0, 1));
  EXPECT_EQ(sink.order.progress().workers[0].applied, 3);
  // A worker without samples has brought nothing, and one without data is not waited for.
  sink.Push(1, 0, 1);
  sink.Push(0, 2, 1);
  sink.Push(2, 2, 1);
  EXPECT_EQ(version(), 1);
  sink.Push(1, 0, 1, /*rows=*/false, /*finished=*/true);
  EXPECT_EQ(version(), 2);
  EXPECT_THAT(sink.folded, ElementsAre(0, 2));
  // A worker that has brought an update before its data ended is in the step.
  sink.Push(2, 2, 2);
  sink.Push(2, 0, 2, false, true);
  EXPECT_EQ(version(), 2);
  sink.Push(0, 2, 2);
  EXPECT_EQ(version(), 3);
  EXPECT_THAT(sink.folded, ElementsAre(2, 0));
  sink.Push(0, 2, 3);
  EXPECT_EQ(version(), 4) << "the only worker with data";
  // Held updates are applied when the last data ends.
  sink.Push(1, 2, 4);
  sink.Push(1, 2, 4);
  EXPECT_EQ(version(), 4);
  sink.Push(1, 0, 4, false, true);
  EXPECT_EQ(version(), 4) << "worker 0 still has data";
  sink.Push(0, 0, 4, false, true);
  EXPECT_EQ(version(), 5);
  EXPECT_THAT(sink.folded, ElementsAre(1, 1));
}

// Under RENNALA the order drops updates of an older version, and counts them nowhere. The worker of
// such an update is not told. An update without rows comes from no read, so it is never old.
TEST(UpdateOrderTest, ABatchMayRefuseOldUpdates) {
  Policy config;
  config.set_kind(Policy::RENNALA);
  config.set_batches(2);
  const auto policy = *policies::NewUpdatePolicy(config, 3);
  Sink sink(*policy);
  const auto version = [&sink] { return sink.order.progress().version; };
  sink.Push(0, 8, 0);
  EXPECT_EQ(version(), 0);
  sink.Push(1, 8, 0);
  EXPECT_EQ(version(), 1);
  EXPECT_EQ(sink.Push(2, 8, 0), Admission::kAdmitted);
  EXPECT_EQ(sink.dropped, 1);
  EXPECT_EQ(sink.order.open_batch(), nullptr);
  EXPECT_EQ(sink.order.progress().workers[2].applied, 1) << "readers see all that counted";
  sink.Push(2, 8, 1);
  EXPECT_EQ(sink.Push(0, 8, 0), Admission::kAdmitted);
  EXPECT_EQ(sink.dropped, 2);
  EXPECT_EQ(version(), 1);
  EXPECT_EQ(sink.order.open_batch()->samples, 8u);
  sink.Push(1, 8, 0, /*rows=*/false);
  EXPECT_EQ(version(), 2);
  EXPECT_THAT(sink.folded, ElementsAre(2));
  // The end of all data closes the open batch, also if its last push is dropped.
  sink.Push(0, 8, 2);
  for (const int rank : {1, 2}) sink.Push(rank, 0, 2, /*rows=*/false, /*finished=*/true);
  EXPECT_EQ(version(), 2) << "worker 0 may have more";
  sink.Push(0, 8, 1, /*rows=*/true, /*finished=*/true);
  EXPECT_EQ(version(), 3);
  EXPECT_THAT(sink.folded, ElementsAre(0));
  EXPECT_EQ(sink.dropped, 3);
}

// Ranges that dropped different updates may have batches with different clocks.
TEST(UpdateOrderTest, ABatchOfSeveralFilesHasTheLatestClock) {
  Policy config;
  config.set_kind(Policy::RENNALA);
  config.set_batches(3);
  const auto policy = *policies::NewUpdatePolicy(config, 3);
  Sink sink(*policy);
  for (const int64_t sample_clock : {40, 24}) {
    policies::HeldGroups<TestUpdate> open, delayed;
    policies::HeldGroup<TestUpdate>& batch = open.Add();
    batch.samples = 8;
    batch.contributions = 1;
    batch.sample_clock = sample_clock;
    batch.skipped = sample_clock == 40;
    ASSERT_EQ(sink.order.ResumeProgress(sink.order.progress()), absl::OkStatus());
    ASSERT_EQ(sink.order.ResumeHeld(
                  open, delayed, /*last_samples=*/0, [](const TestUpdate& u) { return u; },
                  [](const TestUpdate&, TestUpdate*) {}),
              absl::OkStatus());
    ASSERT_EQ(sink.order.FinishResume(), absl::OkStatus());
  }
  ASSERT_NE(sink.order.open_batch(), nullptr);
  EXPECT_EQ(sink.order.open_batch()->sample_clock, 40);
  EXPECT_TRUE(sink.order.open_batch()->skipped);
  EXPECT_EQ(sink.order.open_batch()->samples, 8u);
}

TEST(UpdateOrderTest, APolicySeesTheWholeGroupOfAnUpdate) {
  const EqualWorkers policy;
  Sink sink(policy);
  sink.Push(0, 2, 0);
  sink.Push(1, 8, 0);
  sink.Push(0, 2, 0);
  EXPECT_THAT(sink.factors, ElementsAre());
  sink.Push(2, 4, 0, /*rows=*/false);  // counts, but is not listed
  EXPECT_EQ(sink.order.progress().version, 1);
  EXPECT_THAT(sink.factors, ElementsAre(4, 2, 4));
}

}  // namespace
}  // namespace tandem
