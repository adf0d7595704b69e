#include "tools/doctor/doctor_peer.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "node/transport_choice.h"
#include "proto/frame.h"
#include "transport/path_log.h"
#include "transport/tcp_address.h"

namespace tandem::doctor {
namespace {

using nlohmann::json;

constexpr absl::Duration kConnectBound = absl::Seconds(5);
constexpr absl::Duration kAnswerBound = absl::Seconds(5);
constexpr absl::Duration kHostBound =
    absl::Seconds(45);  // all checks of tools/doctor/doctor_gather.h
constexpr absl::Duration kWayBound =
    absl::Seconds(15);  // longer than a transport's connect deadline
constexpr absl::Duration kProbeBound = absl::Seconds(120);  // a whole probe
constexpr absl::Duration kIdleBound = absl::Seconds(60);
constexpr int kClockQuestions = 16, kRoundTrips = 64, kMaxConnections = 32;

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

absl::StatusOr<std::unique_ptr<transport::Transport>> NewEndpoint(
    const DoctorSelf& self, std::shared_ptr<transport::PathLog> paths) {
  node::RoleFlags flags;
  flags.bind = transport::TcpAddress{self.bind_host, "*"}.ToString();
  flags.advertise = self.advertised_host;
  Cluster cluster;
  cluster.set_transport(self.ours.transport);
  return node::EndpointFactory(flags, cluster, node::NewIncarnation(),
                               std::move(paths))(EndpointId{});
}

// ---- checking another doctor ----

// Sends a frame to `peer` and waits for its echo. UNAVAILABLE: the peer is lost. DEADLINE_EXCEEDED.
absl::Status Trip(transport::Transport* transport, transport::PeerId peer, absl::Time deadline) {
  const Frame frame = EncodeControlFrame(*transport, FrameHeader(), Control());
  TANDEM_RETURN_IF_ERROR(transport->Send(peer, frame));
  std::vector<transport::TransportEvent> events;
  while (MonotonicNow() < deadline) {
    events.clear();
    transport->Poll(deadline - MonotonicNow(), &events);
    for (const transport::TransportEvent& event : events) {
      if (event.peer != peer) continue;
      if (event.kind == transport::TransportEvent::Kind::kFrame) return absl::OkStatus();
      if (event.kind == transport::TransportEvent::Kind::kPeerLost)
        return absl::UnavailableError(event.why.message());
      if (event.kind == transport::TransportEvent::Kind::kPeerClosed)
        return absl::UnavailableError("closed");
    }
  }
  return absl::DeadlineExceededError("no answer to a frame");
}

// Connects as a role does: after a loss it tries the next transport.
absl::StatusOr<transport::PeerId> FirstTrip(transport::Transport* transport,
                                            const std::string& address, absl::Time deadline) {
  constexpr int kWays = 3;
  absl::Status last;
  for (int i = 0; i < kWays; ++i) {
    TANDEM_ASSIGN_OR_RETURN(const transport::PeerId peer, transport->Connect(address));
    last = Trip(transport, peer, deadline);
    if (last.ok()) return peer;
    if (!absl::IsUnavailable(last)) return last;
  }
  return last;
}

absl::Status TryWay(const DoctorSelf& self, const std::string& address, PairFacts* facts) {
  const absl::Time deadline = MonotonicNow() + kWayBound;
  auto paths = std::make_shared<transport::PathLog>();
  TANDEM_ASSIGN_OR_RETURN(const auto transport, NewEndpoint(self, paths));
  const absl::StatusOr<transport::PeerId> peer = FirstTrip(transport.get(), address, deadline);
  facts->way = "ZeroMQ";
  facts->why = "the job asks for it";
  for (const transport::PathChoice& choice : paths->Take()) {
    facts->way = choice.way;
    facts->why = choice.why;
  }
  TANDEM_RETURN_IF_ERROR(peer.status());
  std::vector<double> trips;
  for (int i = 0; i < kRoundTrips; ++i) {
    const absl::Time start = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(Trip(transport.get(), *peer, deadline));
    trips.push_back(absl::ToDoubleMicroseconds(MonotonicNow() - start));
  }
  std::nth_element(trips.begin(), trips.begin() + kRoundTrips / 2, trips.end());
  facts->round_trip_us = trips[kRoundTrips / 2];
  transport->Close(*peer);
  return absl::OkStatus();
}

// Uses the request with the shortest round trip. The other clock was read between two readings of
// ours, so the middle of these two is wrong by at most half of the round trip.
absl::Status CompareClocks(DoctorLink* link, PairFacts* facts) {
  double best = -1;
  for (int i = 0; i < kClockQuestions; ++i) {
    const absl::Time asked = absl::Now();
    TANDEM_ASSIGN_OR_RETURN(const json answer,
                            link->Ask({{"ask", "time"}}, MonotonicNow() + kAnswerBound));
    const absl::Time answered = absl::Now();
    const double in = NumberOf(answer, "in"), out = NumberOf(answer, "out");
    const double way = absl::ToDoubleSeconds(answered - asked) - (out - in);
    if (in == 0 || out < in || way < 0) return absl::InvalidArgumentError("no sensible clock");
    if (best >= 0 && way >= best) continue;
    best = way;
    facts->clock_offset_s = ((in - Seconds(asked)) + (out - Seconds(answered))) / 2;
    facts->clock_error_s = way / 2 + 1e-6;  // rounding: JSON has times in seconds
    facts->has_clock = true;
  }
  return absl::OkStatus();
}

std::vector<Finding> FindingsOf(const json& object) {
  std::vector<Finding> findings;
  const auto list = object.find("findings");
  if (list == object.end() || !list->is_array()) return findings;
  for (const json& one : *list) {
    if (!one.is_object()) continue;
    const std::string level = TextOf(one, "level");
    findings.push_back({level == "problem"   ? Severity::kProblem
                        : level == "warning" ? Severity::kWarning
                                             : Severity::kOk,
                        TextOf(one, "check"), TextOf(one, "found"), TextOf(one, "advice")});
  }
  return findings;
}

// Tells from the first bytes which program listens there.
PairFacts::Answer WhoAnswers(DoctorLink* link, std::string* detail) {
  const absl::Time deadline = MonotonicNow() + kAnswerBound;
  std::string bytes;
  while (bytes.size() < kDoctorBannerBytes) {
    auto some = link->ReadSome(kDoctorBannerBytes - bytes.size(), deadline);
    if (!some.ok()) {
      *detail = std::string(some.status().message());
      if (bytes.empty()) return PairFacts::Answer::kSilent;
      break;
    }
    bytes += *some;
  }
  if (bytes == kDoctorBanner) return PairFacts::Answer::kDoctor;
  // ZMTP begins with ff, the length of a routing id, and 7f.
  if (bytes[0] == '\xff') {
    *detail = "ZeroMQ; for more, tandem doctor --listen beside it";
    return PairFacts::Answer::kRole;
  }
  *detail = absl::StrCat("it begins with \"", absl::CHexEscape(bytes), "\"");
  return PairFacts::Answer::kGarbage;
}

// A doctor names the address of its endpoint, and this process connects there. INVALID_ARGUMENT:
// the endpoint is on another host than the doctor.
absl::Status CheckOnSameHost(const DoctorLink& link, const std::string& address) {
  for (const absl::string_view way : absl::StrSplit(address, ' ', absl::SkipEmpty())) {
    if (absl::StartsWith(way, "shm:")) continue;
    if (!absl::StartsWith(way, "tcp://")) {
      return absl::InvalidArgumentError(
          absl::StrCat("it names ", way, ", expected tcp://HOST:PORT"));
    }
    const std::string peer = link.PeerHost();
    const std::vector<std::string> targets = transport::ResolveToConnect(std::string(way));
    const bool same = std::any_of(targets.begin(), targets.end(), [&peer](const auto& target) {
      return transport::SplitTcpAddress(target).host == peer;
    });
    if (!same) {
      return absl::InvalidArgumentError(
          absl::StrCat("it names ", way, ", and the doctor itself is at ", peer));
    }
  }
  return absl::OkStatus();
}

// The one who asks for a look at another doctor: this process's user, or somebody whom a listener
// answers. Nobody may use a listener to reach, or to see, other ports of the hosts that it reaches.
enum class AskedBy { kUser, kPeer };

absl::Status Interview(const DoctorSelf& self, AskedBy by, DoctorLink* link, int hosts,
                       PairFacts* facts, HostReport* host) {
  TANDEM_ASSIGN_OR_RETURN(
      const json said, link->Ask({{"ask", "host"}, {"hosts", hosts}}, MonotonicNow() + kHostBound));
  facts->version = TextOf(said, "version");
  facts->job_hash = TextOf(said, "job");
  facts->rdma_active = FlagOf(said, "rdma_active");
  facts->rdma_mtu_bytes = static_cast<int>(std::clamp(NumberOf(said, "rdma_mtu"), 0.0, 65536.0));
  if (host != nullptr) {
    host->name = facts->to;
    host->host = TextOf(said, "host");
    host->findings = FindingsOf(said);
  }
  TANDEM_RETURN_IF_ERROR(CompareClocks(link, facts));
  if (facts->version != self.ours.version) return absl::OkStatus();  // frames may differ
  const std::string address = TextOf(said, "address");
  absl::Status way = by == AskedBy::kPeer ? CheckOnSameHost(*link, address) : absl::OkStatus();
  if (way.ok()) way = TryWay(self, address, facts);
  facts->way_error = std::string(way.message());
  return absl::OkStatus();
}

PairFacts Look(const DoctorSelf& self, AskedBy by, const std::string& to, int hosts,
               HostReport* host) {
  PairFacts facts;
  facts.from = self.name;
  facts.to = to;
  absl::StatusOr<DoctorLink> link = DoctorLink::Connect(to, MonotonicNow() + kConnectBound);
  if (!link.ok()) {
    facts.answer = absl::IsFailedPrecondition(link.status()) ? PairFacts::Answer::kRefused
                                                             : PairFacts::Answer::kUnreachable;
    facts.detail = std::string(link.status().message());
    return facts;
  }
  facts.answer = WhoAnswers(&*link, &facts.detail);
  facts.is_doctor = facts.answer == PairFacts::Answer::kDoctor;
  if (!facts.is_doctor) return facts;
  const absl::Status went = Interview(self, by, &*link, hosts, &facts, host);
  if (!went.ok()) {
    facts.answer = absl::IsDeadlineExceeded(went) || absl::IsUnavailable(went)
                       ? PairFacts::Answer::kSilent
                       : PairFacts::Answer::kGarbage;
    facts.detail = std::string(went.message());
  }
  return facts;
}

PairReport PairOf(const json& object) {
  PairReport pair;
  pair.facts.from = TextOf(object, "from");
  pair.facts.to = TextOf(object, "to");
  pair.facts.way = TextOf(object, "by");
  pair.facts.why = TextOf(object, "why");
  pair.facts.round_trip_us = NumberOf(object, "round_trip_us");
  pair.facts.has_clock = object.contains("clock_offset_s");
  pair.facts.clock_offset_s = NumberOf(object, "clock_offset_s");
  pair.facts.clock_error_s = NumberOf(object, "clock_error_s");
  pair.findings = FindingsOf(object);
  return pair;
}

}  // namespace

json ToJson(const Finding& finding) {
  return {{"level", SeverityName(finding.level)},
          {"check", finding.check},
          {"found", finding.found},
          {"advice", finding.advice}};
}

json ToJson(const PairReport& pair) {
  json object = {{"from", pair.facts.from},
                 {"to", pair.facts.to},
                 {"by", pair.facts.way},
                 {"why", pair.facts.why},
                 {"round_trip_us", pair.facts.round_trip_us},
                 {"findings", json::array()}};
  if (pair.facts.has_clock) {
    object["clock_offset_s"] = pair.facts.clock_offset_s;
    object["clock_error_s"] = pair.facts.clock_error_s;
  }
  for (const Finding& finding : pair.findings) object["findings"].push_back(ToJson(finding));
  return object;
}

PairReport Probe(const DoctorSelf& self, const std::string& to, int hosts, HostReport* host) {
  PairReport report;
  report.facts = Look(self, AskedBy::kUser, to, hosts, host);
  report.findings = ExaminePair(self.ours, report.facts);
  return report;
}

absl::StatusOr<std::vector<PairReport>> AskForPairs(const std::string& peer,
                                                    const std::vector<std::string>& others) {
  TANDEM_ASSIGN_OR_RETURN(DoctorLink link,
                          DoctorLink::Connect(peer, MonotonicNow() + kConnectBound));
  TANDEM_RETURN_IF_ERROR(link.ReadAll(kDoctorBannerBytes, MonotonicNow() + kAnswerBound).status());
  const absl::Duration bound = kProbeBound * static_cast<double>(others.size() + 1);
  TANDEM_ASSIGN_OR_RETURN(
      const json answer,
      link.Ask({{"ask", "pairs"}, {"me", peer}, {"peers", others}}, MonotonicNow() + bound));
  std::vector<PairReport> pairs;
  const auto list = answer.find("pairs");
  if (list == answer.end() || !list->is_array()) {
    return absl::InvalidArgumentError("no pairs in its answer");
  }
  for (const json& one : *list) {
    if (one.is_object() && pairs.size() < kMaxDoctorPeers) pairs.push_back(PairOf(one));
  }
  return pairs;
}

// ---- answering ----

struct DoctorServer::State {
  State(DoctorSelf who, DoctorListener where) : self(std::move(who)), listener(std::move(where)) {}

  json AnswerHost(const json& question) const {
    const int hosts = static_cast<int>(std::clamp(NumberOf(question, "hosts"), 1.0, 1e6));
    json answer = {{"host", self.host_name},
                   {"version", self.ours.version},
                   {"job", self.ours.job_hash},
                   {"rdma_active", self.ours.rdma_active},
                   {"rdma_mtu", self.ours.rdma_mtu_bytes},
                   {"address", address},
                   {"findings", json::array()}};
    for (const Finding& finding : self.examine(hosts)) {
      answer["findings"].push_back(ToJson(finding));
    }
    return answer;
  }
  json AnswerPairs(const json& question) const {
    DoctorSelf me = self;
    if (std::string name = TextOf(question, "me"); !name.empty()) me.name = name;
    json pairs = json::array();
    const auto peers = question.find("peers");
    if (peers != question.end() && peers->is_array()) {
      for (const json& peer : *peers) {
        if (!peer.is_string() || pairs.size() >= kMaxDoctorPeers || stop) break;
        PairReport pair;
        pair.facts = Look(me, AskedBy::kPeer, peer.get<std::string>(), 1, nullptr);
        if (!pair.facts.is_doctor && pair.facts.answer != PairFacts::Answer::kUnreachable) {
          pair.facts.answer = PairFacts::Answer::kNoDoctor;
        }
        pair.findings = ExaminePair(me.ours, pair.facts);
        pairs.push_back(ToJson(pair));
      }
    }
    return {{"pairs", pairs}};
  }
  json Answer(const json& question, absl::Time in) const {
    const std::string what = TextOf(question, "ask");
    if (what == "host") return AnswerHost(question);
    if (what == "pairs") return AnswerPairs(question);
    if (what == "time") return {{"in", Seconds(in)}, {"out", Seconds(absl::Now())}};
    return {{"error", "there is no such question"}};
  }
  void Serve(DoctorLink link) const {
    absl::Status went =
        link.Write({kDoctorBanner, kDoctorBannerBytes}, MonotonicNow() + kAnswerBound);
    while (went.ok() && !stop) {
      const auto question = link.Receive(MonotonicNow() + kIdleBound);
      if (!question.ok()) return;
      went = link.Send(Answer(*question, absl::Now()), MonotonicNow() + kAnswerBound);
    }
  }

  const DoctorSelf self;
  DoctorListener listener;
  std::unique_ptr<transport::Transport> transport;  // for the echoes
  std::string address;
  std::atomic<bool> stop{false};
  std::atomic<int> connections{0};
};

absl::StatusOr<std::unique_ptr<DoctorServer>> DoctorServer::New(const DoctorSelf& self,
                                                                const std::string& address) {
  TANDEM_ASSIGN_OR_RETURN(DoctorListener listener, DoctorListener::Bind(address));
  auto state = std::make_shared<State>(self, std::move(listener));
  TANDEM_ASSIGN_OR_RETURN(state->transport,
                          NewEndpoint(self, std::make_shared<transport::PathLog>()));
  state->address = state->transport->address();
  return std::unique_ptr<DoctorServer>(new DoctorServer(std::move(state)));
}

DoctorServer::DoctorServer(std::shared_ptr<State> state) : state_(std::move(state)) {
  accepts_ = std::thread([state = state_] {
    while (!state->stop) {
      auto link = state->listener.Accept(MonotonicNow() + absl::Milliseconds(200));
      if (!link.ok() || state->connections >= kMaxConnections) continue;
      ++state->connections;
      std::thread([state, link = *std::move(link)]() mutable {
        state->Serve(std::move(link));
        --state->connections;
      }).detach();
    }
  });
  echoes_ = std::thread([state = state_] {
    std::vector<transport::TransportEvent> events;
    while (!state->stop) {
      events.clear();
      state->transport->Poll(absl::Milliseconds(200), &events);
      for (const transport::TransportEvent& event : events) {
        if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
        (void)state->transport->Send(event.peer, event.frame.frame);  // an error: the peer is gone
      }
    }
    state->transport.reset();
  });
}

DoctorServer::~DoctorServer() {
  state_->stop = true;
  accepts_.join();
  echoes_.join();
}

int DoctorServer::port() const { return state_->listener.port(); }

}  // namespace tandem::doctor
