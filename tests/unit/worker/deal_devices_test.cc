// Which GPU each worker of a job takes, for GPUs as launchers, containers and MIG show them.
#include "worker/dense/deal_devices.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/rendezvous/coordinator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/dense/join_group.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using worker::DealDevices;
using worker::VisibleDevices;

// Different GPUs that the workers take.
size_t Distinct(const std::vector<VisibleDevices>& visible) {
  const std::vector<int> dealt = DealDevices(visible).of_worker;
  std::set<std::string> taken;
  for (size_t w = 0; w < visible.size(); ++w) {
    if (dealt[w] >= 0) taken.insert(visible[w].at(static_cast<size_t>(dealt[w])));
  }
  return taken.size();
}

TEST(DealDevicesTest, WorkersOfOneAgentTakeItsGpusInTurn) {
  const VisibleDevices two = {"a", "b"};
  EXPECT_THAT(DealDevices({two, two, two, two}).of_worker, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(DealDevices({two, two, two, two}).warning, IsEmpty());
  EXPECT_THAT(DealDevices({two}).of_worker, ElementsAre(0));
}

// `srun -n2 --gpus-per-task=2`: workers 0 and 2 are of agent 0, workers 1 and 3 of agent 1.
TEST(DealDevicesTest, TwoAgentsWithTwoGpusEachUseAllFour) {
  const VisibleDevices first = {"a", "b"}, second = {"c", "d"};
  EXPECT_THAT(DealDevices({first, second, first, second}).of_worker, ElementsAre(0, 0, 1, 1));
}

// Containers have host names of their own.
TEST(DealDevicesTest, ContainersThatSeeAllGpusTakeDifferentOnes) {
  const VisibleDevices all = {"a", "b", "c", "d"};
  EXPECT_THAT(DealDevices({all, all, all, all}).of_worker, ElementsAre(0, 1, 2, 3));
}

TEST(DealDevicesTest, TheOrderInWhichAWorkerSeesGpusDoesNotMatter) {
  EXPECT_EQ(Distinct({{"a", "b"}, {"b", "a"}}), 2u);
  EXPECT_THAT(DealDevices({{"a", "b"}, {"a"}}).of_worker, ElementsAre(1, 0));
  EXPECT_EQ(Distinct({{"a", "c"}, {"a", "b"}, {"a", "b"}}), 3u);
  EXPECT_EQ(Distinct({{"a", "b"}, {"b", "c"}, {"c", "d"}, {"a"}}), 4u);
}

// CUDA shows a process one MIG instance at most.
TEST(DealDevicesTest, MigInstancesAreGpusOfTheirOwn) {
  EXPECT_THAT(DealDevices({{"mig1"}, {"mig2"}, {"whole"}}).of_worker, ElementsAre(0, 0, 0));
  EXPECT_THAT(DealDevices({{"mig1"}, {"mig2"}, {"whole"}}).warning, IsEmpty());
}

TEST(DealDevicesTest, SharingWhileAGpuIsFreeIsAWarning) {
  const auto dealt = DealDevices({{"a"}, {"a"}, {"a", "b", "c"}});
  EXPECT_THAT(dealt.of_worker, ElementsAre(0, 0, 1));
  EXPECT_THAT(dealt.warning, HasSubstr("workers 0, 1 share GPU a"));
  EXPECT_THAT(dealt.warning, HasSubstr("do not see GPU c, which is free; hint: "));
  EXPECT_THAT(DealDevices({{"a"}, {"a"}}).warning, IsEmpty());
}

// The scheduler takes up to 1,000 characters.
TEST(DealDevicesTest, AWarningOfManyWorkersIsShort) {
  std::vector<VisibleDevices> visible(200, {"a"});
  visible.push_back({"a", "b", "c"});
  const std::string warning = DealDevices(visible).warning;
  EXPECT_THAT(warning, HasSubstr("workers 0, 1, 2, 3, 4, 5, 6, 7 and 192 more share GPU a"));
  EXPECT_LT(warning.size(), 300u);
}

TEST(DealDevicesTest, AWorkerWithoutAGpuTakesNone) {
  EXPECT_THAT(DealDevices({{}, {"a"}, {}}).of_worker, ElementsAre(-1, 0, -1));
}

TEST(ShareDevicesTest, EachWorkerLearnsWhatAllSee) {
  const auto coordinator = collectives::Coordinator::Start({});
  ASSERT_TRUE(coordinator.ok()) << coordinator.status();
  job::ResolvedJob plan;
  plan.job.mutable_cluster()->set_workers(2);
  plan.job.mutable_limits()->set_startup_timeout_seconds(60);
  const std::vector<VisibleDevices> own = {{"a", "b"}, {}};
  std::vector<absl::StatusOr<std::vector<VisibleDevices>>> learned(2, absl::UnknownError(""));
  std::vector<std::thread> workers;
  for (int rank = 0; rank < 2; ++rank) {
    workers.emplace_back([&, rank] {
      worker::AbortableWatch watch;
      const auto at = static_cast<size_t>(rank);
      learned[at] =
          worker::ShareDevices(plan, rank, {(*coordinator)->address(), {}}, own[at], &watch);
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (const auto& visible : learned) {
    ASSERT_TRUE(visible.ok()) << visible.status();
    EXPECT_EQ(*visible, own);
  }
  worker::AbortableWatch watch;
  const auto refused = worker::ShareDevices(plan, 0, {(*coordinator)->address(), {}},
                                            VisibleDevices(65, "a"), &watch);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("names 65 GPUs, at most 64"));
}

}  // namespace
}  // namespace tandem
