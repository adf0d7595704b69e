#include "transport/zmq_gate.h"

#include <sodium.h>
#include <zmq.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/exhaustion.h"

namespace tandem::transport {
namespace {

constexpr char kWhere[] = "inproc://zeromq.zap.01";  // the name that libzmq looks for
// A request: version, number, domain, address, routing id, mechanism, and what the client shows.
constexpr size_t kVersion = 0, kNumber = 1, kDomain = 2, kMechanism = 5, kShown = 6;

bool Same(absl::string_view shown, absl::string_view expected) {
  return shown.size() == expected.size() &&
         sodium_memcmp(shown.data(), expected.data(), expected.size()) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ZmqGate>> ZmqGate::Open(void* context) {
  void* const socket = zmq_socket(context, ZMQ_REP);
  const int none = 0;
  if (socket == nullptr || zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none) != 0 ||
      zmq_bind(socket, kWhere) != 0) {
    const std::string why = zmq_strerror(zmq_errno());
    if (socket != nullptr) zmq_close(socket);
    return absl::ResourceExhaustedError(
        absl::StrCat("socket for the keys of ZeroMQ: ", why, "; ", FileLimitHint()));
  }
  return CatchExceptions([socket]() -> absl::StatusOr<std::unique_ptr<ZmqGate>> {
    std::unique_ptr<ZmqGate> gate(new ZmqGate(socket));
    gate->thread_ = std::thread([g = gate.get()] { g->Run(); });
    return gate;
  });
}

ZmqGate::~ZmqGate() {
  stop_.Wake();
  if (thread_.joinable()) thread_.join();
  zmq_close(socket_);
}

void ZmqGate::Admit(Door door) {
  const absl::MutexLock lock(&mutex_);
  doors_.push_back(std::move(door));
}

void ZmqGate::Forget(const std::string& endpoint) {
  const absl::MutexLock lock(&mutex_);
  const auto of_it = [&endpoint](const Door& door) { return door.endpoint == endpoint; };
  doors_.erase(std::remove_if(doors_.begin(), doors_.end(), of_it), doors_.end());
}

void ZmqGate::Run() {
  Request request;
  for (;;) {
    zmq_pollitem_t items[] = {{socket_, 0, ZMQ_POLLIN, 0}, {nullptr, stop_.fd(), ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, -1);
    if ((items[1].revents & ZMQ_POLLIN) != 0) return;
    if (Read(&request)) Answer(request);
  }
}

bool ZmqGate::Read(Request* request) {
  request->count = 0;
  for (int more = 1; more != 0; ++request->count) {
    Request::Part& part = request->parts[std::min(request->count, request->parts.size() - 1)];
    const int size = zmq_recv(socket_, part.bytes.data(), part.bytes.size(), ZMQ_DONTWAIT);
    if (size < 0) return false;
    part.size = std::min(static_cast<size_t>(size), part.bytes.size());
    size_t bytes = sizeof more;
    TANDEM_CHECK(zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &bytes) == 0);
  }
  return true;
}

bool ZmqGate::Admits(const Request& request) {
  if (request.count <= kShown || request[kVersion] != "1.0") return false;
  Door door;
  {
    const absl::MutexLock lock(&mutex_);
    for (const Door& d : doors_) {
      if (d.endpoint == request[kDomain]) door = d;
    }
  }
  if (door.keys == nullptr) return false;
  if (!door.encrypted) {  // the client shows a name and a password
    return request[kMechanism] == "PLAIN" && request.count == kShown + 2 &&
           Same(request[kShown + 1], door.keys->PasswordOf(door.endpoint));
  }
  std::array<uint8_t, JobKeys::kTokenBytes> key;
  TANDEM_CHECK(zmq_z85_decode(key.data(), door.keys->curve_public().c_str()) != nullptr);
  return request[kMechanism] == "CURVE" && request.count == kShown + 1 &&
         Same(request[kShown], {reinterpret_cast<const char*>(key.data()), key.size()});
}

// The answer has the number of the request, a code, a text, and a name and properties of the user.
void ZmqGate::Answer(const Request& request) {
  const absl::string_view number = request.count > kNumber ? request[kNumber] : "";
  const absl::string_view code = Admits(request) ? "200" : "400";
  const absl::string_view parts[] = {"1.0", number, code, "", "", ""};
  for (const absl::string_view& part : parts) {
    const int flags = &part == std::end(parts) - 1 ? 0 : ZMQ_SNDMORE;
    // It fails only if libzmq has given the connection up.
    zmq_send(socket_, part.data(), part.size(), flags | ZMQ_DONTWAIT);
  }
}

}  // namespace tandem::transport
