// Two doctors over real sockets, and whatever else may answer at an address: each is told apart,
// nothing hangs, and nothing that another one says is believed unchecked.
#include "tools/doctor/doctor_peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

absl::Time Deadline() { return MonotonicNow() + kPatience; }

doctor::DoctorSelf Self(Cluster::Transport transport = Cluster::AUTO,
                        const std::string& job = "77") {
  doctor::DoctorSelf self;
  self.name = "here";
  self.host_name = "a";
  self.ours.version = "1";
  self.ours.job_hash = job;
  self.ours.transport = transport;
  self.bind_host = "127.0.0.1";
  self.examine = [](int hosts) {
    return std::vector<doctor::Finding>{{doctor::Severity::kOk, "hosts", absl::StrCat(hosts), ""}};
  };
  return self;
}

std::unique_ptr<doctor::DoctorServer> NewServer(const doctor::DoctorSelf& self) {
  auto server = doctor::DoctorServer::New(self, "127.0.0.1:*");
  TANDEM_CHECK_OK(server.status());
  return *std::move(server);
}

std::string AddressOf(const doctor::DoctorServer& server) {
  return absl::StrCat("127.0.0.1:", server.port());
}

std::string AllFindings(const doctor::PairReport& pair) {
  std::string all;
  for (const doctor::Finding& finding : pair.findings) {
    absl::StrAppend(&all, doctor::SeverityName(finding.level), " ", finding.check, ": ",
                    finding.found, "\n");
  }
  return all;
}

// Somebody who takes one connection and then does what the test wants.
class Fake {
 public:
  explicit Fake(std::function<void(doctor::DoctorLink*)> act)
      : listener_(doctor::DoctorListener::Bind("127.0.0.1:*").value()),
        thread_([this, act = std::move(act)] {
          auto link = listener_.Accept(Deadline());
          TANDEM_CHECK_OK(link.status());
          act(&*link);
        }) {}
  ~Fake() { thread_.join(); }
  std::string address() const { return absl::StrCat("127.0.0.1:", listener_.port()); }

 private:
  doctor::DoctorListener listener_;
  std::thread thread_;
};

// A doctor whose answers are changed on their way.
class LyingDoctor {
 public:
  explicit LyingDoctor(std::function<void(const std::string& ask, json* answer)> lie)
      : fake_([lie = std::move(lie)](doctor::DoctorLink* link) {
          TANDEM_CHECK_OK(
              link->Write({doctor::kDoctorBanner, doctor::kDoctorBannerBytes}, Deadline()));
          for (;;) {
            const auto question = link->Receive(Deadline());
            if (!question.ok()) return;
            const std::string ask = doctor::TextOf(*question, "ask");
            const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
            json answer = ask == "time" ? json{{"in", now}, {"out", now}}
                                        : json{{"host", "liar"}, {"version", "1"}, {"job", "77"}};
            lie(ask, &answer);
            if (!link->Send(answer, Deadline()).ok()) return;
          }
        }) {}
  std::string address() const { return fake_.address(); }

 private:
  Fake fake_;
};

TEST(DoctorPeerTest, TwoOnOneHostUseSharedMemory) {
  const auto server = NewServer(Self());
  doctor::HostReport host;
  const doctor::PairReport pair = doctor::Probe(Self(), AddressOf(*server), 3, &host);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kDoctor);
  EXPECT_EQ(pair.facts.way, "shared memory") << AllFindings(pair);
  EXPECT_EQ(pair.facts.why, "same host");
  EXPECT_GT(pair.facts.round_trip_us, 0);
  // One clock: the estimate must hold what it promises.
  EXPECT_TRUE(pair.facts.has_clock);
  EXPECT_LE(std::abs(pair.facts.clock_offset_s), pair.facts.clock_error_s);
  for (const doctor::Finding& finding : pair.findings)
    EXPECT_EQ(finding.level, doctor::Severity::kOk);
  EXPECT_EQ(host.host, "a");
  ASSERT_EQ(host.findings.size(), 1u);
  EXPECT_EQ(host.findings[0].found, "3");  // hosts that share the job
}

TEST(DoctorPeerTest, AForcedTransportIsUsed) {
  const auto server = NewServer(Self(Cluster::ZMQ));
  const doctor::PairReport pair = doctor::Probe(Self(Cluster::ZMQ), AddressOf(*server), 1, nullptr);
  EXPECT_EQ(pair.facts.way, "ZeroMQ") << AllFindings(pair);
  EXPECT_EQ(pair.facts.why, "the job asks for it");
}

// One side wants shared memory alone, the other does not offer it.
TEST(DoctorPeerTest, NoCommonWay) {
  const auto server = NewServer(Self(Cluster::ZMQ));
  doctor::DoctorSelf self = Self(Cluster::SHM);
  const doctor::PairReport pair = doctor::Probe(self, AddressOf(*server), 1, nullptr);
  // Without an address of that kind the next way is taken, and named.
  EXPECT_EQ(pair.facts.way, "ZeroMQ") << AllFindings(pair);
  EXPECT_THAT(pair.facts.why, HasSubstr("no shared memory there"));
}

TEST(DoctorPeerTest, OneReportsOnAllPairs) {
  const auto b = NewServer(Self()), c = NewServer(Self());
  const auto pairs = doctor::AskForPairs(AddressOf(*b), {AddressOf(*c), AddressOf(*b)});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  ASSERT_EQ(pairs->size(), 2u);
  EXPECT_EQ((*pairs)[0].facts.from, AddressOf(*b));
  EXPECT_EQ((*pairs)[0].facts.to, AddressOf(*c));
  EXPECT_EQ((*pairs)[0].facts.way, "shared memory") << AllFindings((*pairs)[0]);
  EXPECT_TRUE((*pairs)[0].facts.has_clock);
}

// Somebody asks a listener about the ports that it reaches. A port where something answers looks
// like one where nothing listens.
TEST(DoctorPeerTest, AListenerTellsNothingAboutOtherPorts) {
  const auto server = NewServer(Self());
  std::string closed;
  {
    const auto gone = NewServer(Self());
    closed = AddressOf(*gone);
  }
  Fake ssh([](doctor::DoctorLink* link) {
    TANDEM_CHECK_OK(link->Write("SSH-2.0-OpenSSH\r\n", Deadline()));
    (void)link->ReadSome(1, Deadline());
  });
  Fake role([](doctor::DoctorLink* link) {
    TANDEM_CHECK_OK(link->Write(std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10), Deadline()));
    (void)link->ReadSome(1, Deadline());
  });
  const auto pairs =
      doctor::AskForPairs(AddressOf(*server), {ssh.address(), role.address(), closed});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  ASSERT_EQ(pairs->size(), 3u);
  for (const doctor::PairReport& pair : *pairs) {
    EXPECT_EQ(AllFindings(pair), "problem reach: no doctor answers there\n") << pair.facts.to;
  }
}

// A doctor that lies has the listener connect to a port of another host.
TEST(DoctorPeerTest, AListenerConnectsToNoOtherHostForADoctor) {
  const auto server = NewServer(Self());
  LyingDoctor liar([](const std::string& ask, json* answer) {
    if (ask == "host") (*answer)["address"] = "tcp://127.0.0.2:9";
  });
  const auto pairs = doctor::AskForPairs(AddressOf(*server), {liar.address()});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  ASSERT_EQ(pairs->size(), 1u);
  EXPECT_THAT(AllFindings((*pairs)[0]),
              HasSubstr("it names tcp://127.0.0.2:9, and the doctor itself is at 127.0.0.1"));
}

TEST(DoctorPeerTest, Refused) {
  std::string address;
  {
    const auto gone = NewServer(Self());
    address = AddressOf(*gone);
  }
  const doctor::PairReport pair = doctor::Probe(Self(), address, 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kRefused);
  EXPECT_THAT(AllFindings(pair), HasSubstr("problem reach: connection refused"));
}

TEST(DoctorPeerTest, NoSuchHost) {
  const doctor::PairReport pair = doctor::Probe(Self(), "no-such-host.invalid:7000", 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kUnreachable);
  EXPECT_THAT(AllFindings(pair), HasSubstr("problem reach: no connection"));
}

TEST(DoctorPeerTest, OneThatTakesTheConnectionAndSaysNothing) {
  Fake fake([](doctor::DoctorLink* link) { (void)link->ReadSome(1, Deadline()); });
  const doctor::PairReport pair = doctor::Probe(Self(), fake.address(), 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kSilent);
  EXPECT_THAT(AllFindings(pair), HasSubstr("says nothing"));
}

TEST(DoctorPeerTest, OneThatEndsAfterItsFirstWords) {
  Fake fake([](doctor::DoctorLink* link) {
    TANDEM_CHECK_OK(link->Write({doctor::kDoctorBanner, doctor::kDoctorBannerBytes}, Deadline()));
  });
  const doctor::PairReport pair = doctor::Probe(Self(), fake.address(), 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kSilent);
}

TEST(DoctorPeerTest, Garbage) {
  Fake fake([](doctor::DoctorLink* link) {
    TANDEM_CHECK_OK(link->Write("SSH-2.0-OpenSSH\r\n", Deadline()));
    (void)link->ReadSome(1, Deadline());
  });
  const doctor::PairReport pair = doctor::Probe(Self(), fake.address(), 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kGarbage);
  EXPECT_THAT(AllFindings(pair), HasSubstr("it begins with \"SSH-2.0-\""));
}

// After the right first words: a message of four gigabytes, and one that is no object.
TEST(DoctorPeerTest, GarbageLater) {
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff", 4), std::string("\2\0\0\0[]", 6),
                                   std::string("\3\0\0\0{\"a", 7)}) {
    Fake fake([&](doctor::DoctorLink* link) {
      TANDEM_CHECK_OK(link->Write({doctor::kDoctorBanner, doctor::kDoctorBannerBytes}, Deadline()));
      (void)link->Receive(Deadline());
      TANDEM_CHECK_OK(link->Write(bytes, Deadline()));
      (void)link->ReadSome(1, Deadline());
    });
    const doctor::PairReport pair = doctor::Probe(Self(), fake.address(), 1, nullptr);
    EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kGarbage);
  }
}

TEST(DoctorPeerTest, ARunningRoleIsToldByItsGreeting) {
  Fake fake([](doctor::DoctorLink* link) {
    TANDEM_CHECK_OK(link->Write(std::string("\xff\0\0\0\0\0\0\0\1\x7f", 10), Deadline()));
    (void)link->ReadSome(1, Deadline());
  });
  const doctor::PairReport pair = doctor::Probe(Self(), fake.address(), 1, nullptr);
  EXPECT_EQ(pair.facts.answer, doctor::PairFacts::Answer::kRole);
  EXPECT_EQ(pair.findings[0].level, doctor::Severity::kOk);
}

TEST(DoctorPeerTest, AnotherVersion) {
  LyingDoctor liar([](const std::string&, json* answer) { (*answer)["version"] = "2"; });
  const doctor::PairReport pair = doctor::Probe(Self(), liar.address(), 1, nullptr);
  EXPECT_THAT(AllFindings(pair), HasSubstr("problem version: it has Tandem 2, we have 1"));
}

TEST(DoctorPeerTest, AnotherJob) {
  const auto server = NewServer(Self(Cluster::AUTO, "78"));
  const doctor::PairReport pair = doctor::Probe(Self(), AddressOf(*server), 1, nullptr);
  EXPECT_THAT(AllFindings(pair), HasSubstr("problem job: it has another job"));
}

TEST(DoctorPeerTest, AShiftedClock) {
  constexpr double kShift = -7200;
  LyingDoctor liar([](const std::string& ask, json* answer) {
    if (ask != "time") return;
    (*answer)["in"] = (*answer)["in"].get<double>() + kShift;
    (*answer)["out"] = (*answer)["out"].get<double>() + kShift;
  });
  const doctor::PairReport pair = doctor::Probe(Self(), liar.address(), 1, nullptr);
  EXPECT_LE(std::abs(pair.facts.clock_offset_s - kShift), pair.facts.clock_error_s);
  EXPECT_THAT(AllFindings(pair), HasSubstr("problem clock: its clock is 7200.000 s behind ours"));
}

// Neither times that cannot be nor fields of other types end in anything but a finding.
TEST(DoctorPeerTest, AnswersThatMakeNoSense) {
  LyingDoctor backwards([](const std::string& ask, json* answer) {
    if (ask == "time") (*answer)["out"] = (*answer)["in"].get<double>() - 1;
  });
  EXPECT_EQ(doctor::Probe(Self(), backwards.address(), 1, nullptr).facts.answer,
            doctor::PairFacts::Answer::kGarbage);
  LyingDoctor types([](const std::string& ask, json* answer) {
    if (ask == "host") *answer = {{"version", 1}, {"job", json::array()}, {"findings", "x"}};
  });
  EXPECT_THAT(AllFindings(doctor::Probe(Self(), types.address(), 1, nullptr)),
              HasSubstr("problem version"));
  LyingDoctor address([](const std::string& ask, json* answer) {
    if (ask == "host") (*answer)["address"] = "shm:nowhere tcp://no-port";
  });
  EXPECT_THAT(AllFindings(doctor::Probe(Self(), address.address(), 1, nullptr)),
              HasSubstr("problem transport"));
}

// The server is as careful: garbage ends a connection, not the server.
TEST(DoctorPeerTest, TheServerTakesNoGarbage) {
  const auto server = NewServer(Self());
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\4\0\0\0null", 8)}) {
    auto link = doctor::DoctorLink::Connect(AddressOf(*server), Deadline());
    ASSERT_TRUE(link.ok());
    ASSERT_TRUE(link->ReadAll(doctor::kDoctorBannerBytes, Deadline()).ok());
    ASSERT_TRUE(link->Write(bytes, Deadline()).ok());
    EXPECT_FALSE(link->ReadSome(1, Deadline()).ok());
  }
  auto link = doctor::DoctorLink::Connect(AddressOf(*server), Deadline());
  ASSERT_TRUE(link.ok());
  ASSERT_TRUE(link->ReadAll(doctor::kDoctorBannerBytes, Deadline()).ok());
  const auto answer = link->Ask({{"ask", 7}}, Deadline());
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(doctor::TextOf(*answer, "error"), "there is no such question");
}

TEST(DoctorLinkTest, Addresses) {
  EXPECT_EQ(doctor::SplitHostPort("tcp://[::1]:70").value(),
            std::make_pair(std::string("::1"), std::string("70")));
  for (const char* bad : {"", "host", ":70", "host:", "tcp://host"}) {
    EXPECT_FALSE(doctor::SplitHostPort(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace tandem
