// The link of an RDMA device goes down in the middle of pushes: they go on by ZeroMQ, and each is
// applied once. Needs a link that may be taken down (TANDEM_RDMA_LINK, as in the guest).
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rdma/rdma_transport.h"
#include "tests/bench/lone_shard.h"
#include "transport/multi_transport.h"
#include "transport/path_log.h"
#include "transport/zmq_transport.h"
#include "worker/client.h"

namespace tandem {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr int kBefore = 20, kAtLeast = 60;

class RdmaFallbackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    link_ = std::getenv("TANDEM_RDMA_LINK");
    if (link_ == nullptr) GTEST_SKIP() << "no link here that may be taken down";
    auto context = RdmaContext::New();
    if (!context.ok()) GTEST_SKIP() << context.status().message();
    rdma_ = *context;
  }
  void TearDown() override {
    if (link_ != nullptr) Link("up");
  }
  int Link(const std::string& state) {
    return std::system(absl::StrCat("ip link set ", link_, " ", state).c_str());
  }
  // RDMA first, then ZeroMQ.
  std::unique_ptr<Transport> New() {
    RdmaOptions rdma;
    rdma.context = rdma_;
    auto fast = NewRdmaTransport(rdma);
    TANDEM_CHECK_OK(fast.status());
    ZmqOptions zmq;
    zmq.context = zmq_;
    auto network = NewZmqTransport(zmq);
    TANDEM_CHECK_OK(network.status());
    MultiOptions options;
    options.ways.push_back({"RDMA", {"rdma://"}, *std::move(fast)});
    options.ways.push_back({"ZeroMQ", {"tcp://"}, *std::move(network), absl::Microseconds(200)});
    options.on_path = [this](const PathChoice& choice) { paths_.Add(choice); };
    return NewMultiTransport(std::move(options));
  }
  // The choice made last.
  const PathChoice& Last() {
    for (PathChoice& choice : paths_.Take()) last_ = std::move(choice);
    return last_;
  }

  const char* link_ = nullptr;
  std::shared_ptr<RdmaContext> rdma_;
  const std::shared_ptr<ZmqContext> zmq_ = std::make_shared<ZmqContext>(1);
  PathLog paths_;
  PathChoice last_;
};

TEST_F(RdmaFallbackTest, APushIsNeitherLostNorDoubledWhenTheLinkGoesDown) {
  const JobPlan plan = LoneShardPlan(
      "table { name: \"t\" dim: 1 optimizer { kind: SGD learning_rate: 1 } "
      "initializer { kind: ZERO } }\n",
      "kind: ASP", 1);
  LoneShard shard(plan, New());
  Client::Options options;
  options.incarnation = 2;
  auto client = Client::New(plan, New(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->SetView(shard.view()).ok());
  const std::vector<uint64_t> ids = {7};
  const std::vector<float> gradient = {1};
  const TableKeys keys = {0, ids};
  const absl::Span<const float> gradients = gradient;
  int pushes = 0;
  const absl::Time end = absl::Now() + kPatience;
  for (; pushes < kAtLeast || (Last().way != "ZeroMQ" && absl::Now() < end); ++pushes) {
    auto push = (*client)->Push(0, pushes, 1, {&keys, 1}, {&gradients, 1}, Client::Ids::kUnique);
    if (pushes == kBefore) {
      EXPECT_EQ(Last().way, "RDMA");
      ASSERT_EQ(Link("down"), 0);  // with a push under way
    }
    ASSERT_TRUE(push.status().ok()) << push.status();
  }
  std::vector<float> row = {99};
  const absl::Span<float> rows = absl::MakeSpan(row);
  ASSERT_TRUE(
      (*client)->Pull(0, pushes, {&keys, 1}, {&rows, 1}, Client::Ids::kUnique).status().ok());
  EXPECT_EQ(row[0], -static_cast<float>(pushes)) << "each once";
  EXPECT_EQ(Last().way, "ZeroMQ");
  EXPECT_THAT(Last().why, ::testing::HasSubstr("broke"));
}

}  // namespace
}  // namespace tandem
