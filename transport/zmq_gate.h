// ZmqGate decides which processes may connect to the ZeroMQ endpoints of a context. libzmq asks the
// gate in the handshake of each connection (ZAP, ZeroMQ RFC 27). So a stranger is refused before
// libzmq gives the connection a routing id, stores a message of it or lets it stay silent.
//
// An endpoint with keys sets ZMQ_ZAP_DOMAIN to its number, which no other endpoint has. The gate
// compares what the client shows with what this endpoint takes: its password (PLAIN), or the public
// key of the job (CURVE).
//
// Threads: the gate's one thread answers libzmq. Any thread may call Admit() and Forget().
#ifndef TANDEM_TRANSPORT_ZMQ_GATE_H_
#define TANDEM_TRANSPORT_ZMQ_GATE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/wake_fd.h"
#include "transport/job_keys.h"

namespace tandem::transport {

class ZmqGate {
 public:
  // Opens the gate of a context of libzmq. A context has one gate at most, and must outlive it.
  // RESOURCE_EXHAUSTED: there is no socket, file or thread left.
  static absl::StatusOr<std::unique_ptr<ZmqGate>> Open(void* context);
  // Refuses all later connections to endpoints with keys. Established connections stay.
  ~ZmqGate();
  ZmqGate(const ZmqGate&) = delete;
  ZmqGate& operator=(const ZmqGate&) = delete;

  // An endpoint, and the keys that open it.
  struct Door {
    std::string endpoint;  // its number
    std::shared_ptr<const JobKeys> keys;
    bool encrypted = false;
  };
  // Lets processes with these keys connect to the endpoint, until Forget(endpoint).
  void Admit(Door door);
  void Forget(const std::string& endpoint);

 private:
  // The parts of one request. Longer parts and further ones fit no keys, and are cut off.
  struct Request {
    struct Part {
      std::array<char, 256> bytes;
      size_t size = 0;
    };
    std::array<Part, 8> parts;
    size_t count = 0;  // of parts as sent
    absl::string_view operator[](size_t i) const { return {parts[i].bytes.data(), parts[i].size}; }
  };

  explicit ZmqGate(void* socket) : socket_(socket) {}
  void Run();
  bool Read(Request* request);
  bool Admits(const Request& request);
  void Answer(const Request& request);

  void* const socket_;  // belongs to the thread
  WakeFd stop_;
  absl::Mutex mutex_;
  std::vector<Door> doors_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_GATE_H_
