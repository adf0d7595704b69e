// How long a node waits for its scheduler, why nobody answers there, by what name it speaks of
// itself, and which ways to others it offers. And its end, while one of its threads still reads.
#include "node/node_link.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/owned_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "tests/unit/transport/fake_transport.h"
#include "tests/unit/transport/scarce_system.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using Kind = transport::TransportEvent::Kind;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NodeLinkTest : public testing::Test {
 protected:
  static node::NodeLink::Options Options() {
    node::NodeLink::Options options;
    options.scheduler = "s";
    options.self = EndpointId::Worker(0);
    options.registration.set_incarnation(7);
    return options;
  }
  static absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }
  void Hear(double at, transport::PeerId peer, uint64_t scheduler = 5) {
    Control view;
    view.mutable_view()->set_number(1);
    FrameHeader header;
    header.sender = EndpointId::Scheduler();
    header.incarnation = scheduler;
    transport::TransportEvent event;
    event.peer = peer;
    event.frame = *DecodeFrame(EncodeControlFrame(transport_, header, view));
    link_.OnEvent(At(at), event, &inbox_);
  }
  void Lose(double at, transport::PeerId peer) {
    transport::TransportEvent event;
    event.kind = Kind::kPeerLost;
    event.peer = peer;
    link_.OnEvent(At(at), event, &inbox_);
    link_.OnTick(At(at));
  }

  FakeTransport transport_;
  node::NodeLink link_{transport_, Options()};
  std::vector<Control> inbox_;
};

// A scheduler says nothing to a node for as long as there is nothing to say.
TEST_F(NodeLinkTest, AConnectionThatBreaksAfterALongSilenceIsMadeAgain) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Hear(1, 1);
  Lose(600, 1);
  EXPECT_TRUE(link_.failure().ok()) << link_.failure();
  link_.OnTick(At(601.5));
  EXPECT_EQ(transport_.connected.size(), 2u) << "registers again";
  Hear(602, 2);
  Lose(900, 2);
  EXPECT_TRUE(link_.failure().ok()) << "what was heard since counts";
}

TEST_F(NodeLinkTest, ASchedulerThatStaysAwayEndsTheNode) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Hear(1, 1);
  Lose(600, 1);
  for (int i = 0; i < 9; ++i) {  // each attempt is lost in its turn
    link_.OnTick(At(601.5 + i));
    Lose(601.6 + i, transport_.last_peer);
  }
  EXPECT_THAT(link_.failure().ToString(), HasSubstr("no connection to s for 8 s"));
}

// After a restart another scheduler may listen at the same address. It has other plans for the rank
// of this node, which is of the attempt before.
TEST_F(NodeLinkTest, ASchedulerOfTheNextAttemptEndsTheNode) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Hear(1, 1);
  ASSERT_EQ(inbox_.size(), 1u);
  Lose(2, 1);
  link_.OnTick(At(3.5));
  const absl::StatusOr<Control> again = transport_.last.ParseControl();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->register_().scheduler(), 5u) << "so that the scheduler can refuse it";
  Hear(4, 2, /*scheduler=*/6);
  EXPECT_THAT(link_.failure().ToString(), HasSubstr("has been started again"));
  EXPECT_EQ(inbox_.size(), 1u) << "it follows no word of another scheduler";
}

// The scheduler would call it garbage, and could not say which message it was.
TEST_F(NodeLinkTest, AMessageThatIsTooLargeIsAFailureThatNamesIt) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Control control;
  control.mutable_shard_report()->add_table()->set_table(std::string(kMaxControlBytes, 'x'));
  link_.Send(control);
  const absl::StatusOr<Control> sent = transport_.last.ParseControl();
  ASSERT_TRUE(sent.ok()) << sent.status();
  EXPECT_EQ(sent->failure().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(sent->failure().reason(),
              AllOf(HasSubstr("its message shard_report to the scheduler has 6710"),
                    HasSubstr("bytes, at most 67108864")));
  // A reason is cut between two characters.
  std::string text = "x";
  for (int i = 0; i < 80'000; ++i) text += "\xc3\xbc";
  link_.ReportOwnFailure(absl::InternalError(text), absl::nullopt);
  const absl::StatusOr<Control> cut = transport_.last.ParseControl();
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(cut->failure().reason().size(), 65'535u);
}

TEST_F(NodeLinkTest, WhatCannotBeReadFromTheSchedulerEndsTheNode) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Hear(1, 1);
  transport::TransportEvent event;
  event.kind = Kind::kGarbage;
  event.peer = 2;  // not the scheduler
  event.why = absl::InvalidArgumentError("control frame of too many bytes");
  link_.OnEvent(At(2), event, &inbox_);
  EXPECT_TRUE(link_.failure().ok());
  event.peer = 1;
  link_.OnEvent(At(2), event, &inbox_);
  EXPECT_EQ(link_.failure().message(), "scheduler: sent garbage: control frame of too many bytes");
  const absl::StatusOr<Control> sent = transport_.last.ParseControl();
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->failure().reason(), link_.failure().message()) << "the scheduler is told";
}

// Whoever starts roles by hand may start the scheduler last.
TEST_F(NodeLinkTest, ASchedulerThatWasNeverThereIsWaitedForLonger) {
  node::NodeLink::Options options = Options();
  options.found_within = absl::Seconds(60);
  node::NodeLink patient(transport_, options);
  ASSERT_TRUE(patient.Start(At(0)).ok());
  const auto lose = [&](double at) {
    transport::TransportEvent event;
    event.kind = Kind::kPeerLost;
    event.peer = transport_.last_peer;
    patient.OnEvent(At(at), event, &inbox_);
    patient.OnTick(At(at));
  };
  for (int at = 1; at < 60; ++at) lose(at);
  EXPECT_TRUE(patient.failure().ok()) << patient.failure();
  for (int at = 60; at < 64; ++at) lose(at);
  EXPECT_THAT(patient.failure().ToString(), HasSubstr("is it running?"));
}

// A process that is stopped, as the scheduler may be with it, has not looked for anybody meanwhile.
TEST_F(NodeLinkTest, APauseOfThisProcessIsNoAbsenceOfTheScheduler) {
  ASSERT_TRUE(link_.Start(At(0)).ok());
  Hear(1, 1);
  for (int second = 2; second <= 100; ++second) link_.OnTick(At(second));
  Lose(100, 1);
  link_.OnTick(At(160));
  EXPECT_TRUE(link_.failure().ok()) << link_.failure();
  for (int second = 161; second <= 166; ++second) Lose(second, transport_.last_peer);
  EXPECT_TRUE(link_.failure().ok()) << link_.failure();
  for (int second = 167; second <= 170; ++second) Lose(second, transport_.last_peer);
  EXPECT_THAT(link_.failure().ToString(), HasSubstr("no connection to s"));
}

TEST(TransportChoiceTest, WithoutSharedMemoryTheNextWayIsTakenOrTheJobRefused) {
  const auto address_for = [](Cluster::Transport transport) {
    Cluster cluster;
    cluster.set_workers(1);
    cluster.set_servers(1);
    cluster.set_transport(transport);
    const auto made =
        node::EndpointFactory(node::RoleFlags(), cluster, 7,
                              std::make_shared<transport::PathLog>())(EndpointId::Worker(0));
    return made.ok() ? (*made)->address() : made.status().ToString();
  };
  EXPECT_THAT(address_for(Cluster::AUTO), HasSubstr("shm:"));
  EXPECT_TRUE(OnAnOldKernel([&] {
    const std::string automatic = address_for(Cluster::AUTO);
    return absl::StrContains(automatic, "tcp://") && !absl::StrContains(automatic, "shm:");
  }));
  EXPECT_TRUE(OnAnOldKernel([] {
    Job job;
    job.mutable_cluster()->set_transport(Cluster::SHM);
    const absl::Status refused = node::CheckTransport(job);
    return absl::IsUnimplemented(refused) &&
           absl::StrContains(refused.message(), "cluster.transport: SHM: ");
  }));
}

TEST_F(NodeLinkTest, SaysWhyNobodyAnswers) {
  node::NodeLink::Options options = Options();
  options.why_no_answer = [](const std::string& address) { return address + " is odd"; };
  node::NodeLink link(transport_, options);
  ASSERT_TRUE(link.Start(At(0)).ok());
  for (int at = 1; at < 12; ++at) {
    transport::TransportEvent lost;
    lost.kind = Kind::kPeerLost;
    lost.peer = transport_.last_peer;
    link.OnEvent(At(at), lost, &inbox_);
    link.OnTick(At(at));
  }
  EXPECT_THAT(link.failure().ToString(), HasSubstr(" s: s is odd"));
}

// A proxy whose scheduler does not run yet closes each connection.
TEST_F(NodeLinkTest, ARefusalCountsOnlyFromAProgramWithZeroMq) {
  node::NodeLink::Options options = Options();
  bool answers = false;
  options.answers_as_zmq = [&answers](const std::string&) { return answers; };
  node::NodeLink link(transport_, options);
  ASSERT_TRUE(link.Start(At(0)).ok());
  for (int at = 1; at < 5; ++at) {
    answers = at > 2;
    transport::TransportEvent lost;
    lost.kind = Kind::kPeerLost;
    lost.peer = transport_.last_peer;
    lost.why = absl::UnauthenticatedError("does not accept the token");
    link.OnEvent(At(at), lost, &inbox_);
    link.OnTick(At(at));
    EXPECT_EQ(link.failure().ok(), at <= 2) << link.failure();
  }
  EXPECT_EQ(link.failure().message(), "scheduler: does not accept the token");
}

// Nobody, a program that is none of ours, one that is.
TEST(WhyNoAnswerTest, TellsWhoAnswers) {
  const OwnedFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string address = absl::StrCat("tcp://127.0.0.1:", ntohs(at.sin_port));
  EXPECT_THAT(node::WhyNoAnswer(address), HasSubstr("Connection refused; hint: is it running?"));
  ASSERT_EQ(listen(listener.get(), 1), 0);
  EXPECT_THAT(node::WhyNoAnswer(address), HasSubstr("something else answers there"));
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  const auto endpoint = transport::NewZmqTransport(options);
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_THAT(node::WhyNoAnswer((*endpoint)->address()), HasSubstr("with ZeroMQ answers"));
  EXPECT_THAT(node::WhyNoAnswer("tcp://no.such.host.invalid:1"), HasSubstr("is not known"));
  EXPECT_TRUE(node::CheckLoopback().ok());
}

// A pass over terabytes of data is not waited for once the job is over.
TEST(RoleEndTest, EndsAProcessThatIsStillBusy) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(fds[1], STDERR_FILENO);
    node::RoleEnd end("tandem-worker");
    end.Begin(absl::CancelledError("stopped"), absl::Milliseconds(50));
    for (;;) pause();
  }
  close(fds[1]);
  char said[100] = "";
  const ssize_t bytes = read(fds[0], said, sizeof said - 1);
  close(fds[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == node::kExitFailed) << status;
  EXPECT_EQ(std::string(said, static_cast<size_t>(bytes)), "tandem-worker: stopped\n");
}

}  // namespace
}  // namespace tandem
