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
#include "tests/unit/rdma/rdma_world.h"
#include "tests/unit/transport/pushes_across_a_break.h"
#include "transport/multi_transport.h"
#include "transport/path_log.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(5);

class RdmaFallbackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    link_ = std::getenv("TANDEM_RDMA_LINK");
    if (link_ == nullptr) GTEST_SKIP() << "no link here that may be taken down";
    if (!world_.missing().empty()) GTEST_SKIP() << world_.missing();
  }
  void TearDown() override {
    if (link_ != nullptr) Link("up");
  }
  int Link(const std::string& state) {
    return std::system(absl::StrCat("ip link set ", link_, " ", state).c_str());
  }
  // RDMA first, then ZeroMQ.
  std::unique_ptr<transport::Transport> New() {
    transport::ZmqOptions zmq;
    zmq.context = zmq_;
    auto network = transport::NewZmqTransport(zmq);
    TANDEM_CHECK_OK(network.status());
    transport::MultiOptions options;
    options.ways.push_back({"RDMA", {"rdma://"}, world_.NewRdma(world_.Options())});
    options.ways.push_back({"ZeroMQ", {"tcp://"}, *std::move(network), absl::Microseconds(200)});
    options.on_path = [this](const transport::PathChoice& choice) { paths_.Add(choice); };
    return transport::NewMultiTransport(std::move(options));
  }
  // The choice made last.
  const transport::PathChoice& Last() {
    for (transport::PathChoice& choice : paths_.Take()) last_ = std::move(choice);
    return last_;
  }

  const char* link_ = nullptr;
  RdmaWorld world_{rdma::RdmaOptions()};
  const std::shared_ptr<transport::ZmqContext> zmq_ = std::make_shared<transport::ZmqContext>(1);
  transport::PathLog paths_;
  transport::PathChoice last_;
};

TEST_F(RdmaFallbackTest, APushIsNeitherLostNorDoubledWhenTheLinkGoesDown) {
  ExpectEachPushAppliedOnce({
      .endpoint = [this] { return New(); },
      .break_it =
          [this] {
            EXPECT_EQ(Last().way, "RDMA");
            EXPECT_EQ(Link("down"), 0);
          },
      .other_way = [this] { return Last().way == "ZeroMQ"; },
      .patience = kPatience,
  });
  EXPECT_THAT(Last().why, ::testing::HasSubstr("broke"));
}

}  // namespace
}  // namespace tandem
