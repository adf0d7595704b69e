#include "collectives/rendezvous/coordinator.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "base/wake_fd.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/rendezvous/coordinator_core.h"
#include "collectives/rendezvous/message_stream.h"
#include "collectives/rendezvous/rendezvous.h"

namespace tandem::collectives {
namespace {

constexpr size_t kMaxRequestBytes = size_t{16} << 10;  // a Join with all its names
constexpr size_t kMaxConnections = size_t{1} << 15;
// Without a free file no newcomer can be accepted, and the listener stays readable.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);
// How long the last messages may take to leave.
constexpr absl::Duration kFarewell = absl::Milliseconds(200);

uint64_t Unguessable() {
  uint64_t seed = 0;
  TANDEM_CHECK(getrandom(&seed, sizeof seed, 0) == sizeof seed);
  return seed;
}

CoordinatorCoreOptions CoreOptions(const CoordinatorOptions& options) {
  CoordinatorCoreOptions core;
  core.beat = options.beat;
  core.own_rank = options.own_rank;
  core.seed = Unguessable();
  return core;
}

}  // namespace

class Coordinator::Server {
 public:
  Server(CoordinatorOptions options, TcpListener listener)
      : options_(std::move(options)),
        listener_(std::move(listener)),
        core_(CoreOptions(options_)) {}

  void Run();
  void Stop() {
    stop_.store(true);
    wake_.Wake();
  }
  const std::string& address() const { return listener_.address(); }

 private:
  struct Connection {
    MessageStream stream;
    bool closing = false;  // close it when its queue has left
  };
  void Wait(absl::Time now);
  void AcceptNewcomers(absl::Time now);
  void Serve(ConnectionId id, absl::Time now);
  void TurnAway(ConnectionId id, const absl::Status& why);
  void Close(ConnectionId id, absl::string_view why);
  void Carry(absl::Time now);
  void FlushAll();
  void SayGoodbye();
  void Log(absl::string_view line) {
    if (options_.log) options_.log(line);
  }

  const CoordinatorOptions options_;
  TcpListener listener_;
  CoordinatorCore core_;
  WakeFd wake_;
  std::atomic<bool> stop_{false};
  std::map<ConnectionId, Connection> connections_;
  ConnectionId next_ = 1;
  absl::Time accept_after_ = absl::InfinitePast();
  bool accept_failed_ = false;  // and the log says so
  CoordinatorEffects effects_;
  std::vector<pollfd> polled_;           // wake-up, listener, then the connections
  std::vector<ConnectionId> polled_id_;  // ids of the connections, in the same order
};

// Waits for at most a quarter of a heartbeat, so that OnTick runs often enough. If there are too
// many connections, or no file for another one, the listener is not polled: new peers wait in the
// kernel's queue.
void Coordinator::Server::Wait(absl::Time now) {
  polled_.clear();
  polled_id_.clear();
  polled_.push_back({wake_.fd(), POLLIN, 0});
  const bool room = connections_.size() < kMaxConnections && now >= accept_after_;
  polled_.push_back({room ? listener_.fd() : -1, POLLIN, 0});
  for (const auto& [id, connection] : connections_) {
    const int writable = connection.stream.WantsWritable() ? POLLOUT : 0;
    polled_.push_back({connection.stream.fd(), static_cast<short>(POLLIN | writable), 0});
    polled_id_.push_back(id);
  }
  const int64_t ms = absl::ToInt64Milliseconds(options_.beat / 4);
  (void)poll(polled_.data(), polled_.size(), static_cast<int>(std::clamp<int64_t>(ms, 1, 1000)));
}

// Messages come before the tick: a heartbeat that has arrived must count before the core looks for
// silent ranks. Everything is flushed once at the end.
void Coordinator::Server::Run() {
  while (!stop_.load()) {
    Wait(MonotonicNow());
    const absl::Time now = MonotonicNow();
    if (polled_[1].revents != 0) AcceptNewcomers(now);
    for (size_t i = 0; i < polled_id_.size(); ++i) {
      if (polled_[i + 2].revents != 0) Serve(polled_id_[i], now);
    }
    core_.OnTick(now, &effects_);
    Carry(now);
    FlushAll();
  }
  SayGoodbye();
}

void Coordinator::Server::AcceptNewcomers(absl::Time now) {
  while (connections_.size() < kMaxConnections) {
    absl::StatusOr<OwnedFd> socket = listener_.Accept();
    if (!socket.ok()) {
      if (absl::IsNotFound(socket.status())) return;
      accept_after_ = now + kAcceptPause;
      if (!std::exchange(accept_failed_, true)) {
        Log(absl::StrCat("newcomers wait: ", socket.status().message(), "; ", FileLimitHint()));
      }
      return;
    }
    const ConnectionId id = next_++;
    connections_.emplace(id, Connection{MessageStream(*std::move(socket), kMaxRequestBytes,
                                                      NewProof(transport::Proof::Side::kAccepts,
                                                               options_.keys, kCoordinatorPlace))});
    core_.OnConnect(id, now);
  }
}

void Coordinator::Server::Serve(ConnectionId id, absl::Time now) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  const absl::Status ended = it->second.stream.Receive();
  rendezvous::ToCoordinator message;
  while (connections_.count(id) > 0 && !it->second.closing) {
    const absl::StatusOr<bool> next = it->second.stream.Next(&message);
    if (absl::IsUnauthenticated(next.status())) return TurnAway(id, next.status());
    if (!next.ok()) return Close(id, absl::StrCat("it sent ", next.status().message()));
    if (!*next) break;
    core_.OnMessage(id, message, now, &effects_);
    Carry(now);
  }
  if (!ended.ok()) Close(id, "");
}

// Tells a peer without the token why it cannot join, and closes the connection after that.
void Coordinator::Server::TurnAway(ConnectionId id, const absl::Status& why) {
  core_.OnClose(id, absl::StrCat("the peer ", why.message()), &effects_);
  rendezvous::FromCoordinator message;
  message.mutable_refusal()->set_why(
      absl::StrCat("this process ", why.message(), "; hint: ", kTokenHint));
  Connection& connection = connections_.at(id);
  connection.stream.SendUnproven(message);
  connection.closing = true;
}

void Coordinator::Server::Close(ConnectionId id, absl::string_view why) {
  if (connections_.erase(id) > 0) core_.OnClose(id, why, &effects_);
}

// Carries out the effects of the core: log lines, messages, connections to close.
void Coordinator::Server::Carry(absl::Time) {
  CoordinatorEffects effects;
  std::swap(effects, effects_);
  for (const std::string& line : effects.log) Log(line);
  for (const CoordinatorEffects::Send& send : effects.sends) {
    const auto it = connections_.find(send.to);
    if (it != connections_.end()) it->second.stream.Send(send.message);
  }
  for (const ConnectionId id : effects.closes) {
    const auto it = connections_.find(id);
    if (it != connections_.end()) it->second.closing = true;
  }
}

void Coordinator::Server::FlushAll() {
  std::vector<std::pair<ConnectionId, std::string>> ended;
  for (auto& [id, connection] : connections_) {
    const absl::Status status = connection.stream.Flush();
    if (absl::IsResourceExhausted(status)) ended.emplace_back(id, status.message());
    const bool said_all = connection.closing && !connection.stream.WantsWritable();
    // A connection that fails here is closed by Serve, after it was read to its end.
    if (said_all || (connection.closing && !status.ok())) ended.emplace_back(id, "");
  }
  for (const auto& [id, why] : ended) Close(id, why);
}

void Coordinator::Server::SayGoodbye() {
  rendezvous::FromCoordinator goodbye;
  goodbye.mutable_goodbye();
  for (auto& [id, connection] : connections_) connection.stream.Send(goodbye);
  const absl::Time by = MonotonicNow() + kFarewell;
  const auto waits = [](const auto& c) { return c.second.stream.WantsWritable(); };
  do {
    for (auto it = connections_.begin(); it != connections_.end();) {
      it = it->second.stream.Flush().ok() ? std::next(it) : connections_.erase(it);
    }
    if (std::none_of(connections_.begin(), connections_.end(), waits)) break;
    absl::SleepFor(absl::Milliseconds(1));
  } while (MonotonicNow() < by);
}

Coordinator::Coordinator(std::unique_ptr<Server> server)
    : server_(std::move(server)),
      address_(server_->address()),
      thread_([s = server_.get()] { s->Run(); }) {}

Coordinator::~Coordinator() {
  server_->Stop();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options) {
  if (options.beat < absl::Milliseconds(1)) {
    return absl::InvalidArgumentError("coordinator: the heartbeat interval is below 1 ms");
  }
  TANDEM_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Bind(options.address));
  auto server = std::make_unique<Server>(std::move(options), std::move(listener));
  return std::unique_ptr<Coordinator>(new Coordinator(std::move(server)));
}

}  // namespace tandem::collectives
