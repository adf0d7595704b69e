// Shared memory and ZeroMQ behind one transport, for the conformance suite.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_MULTI_WORLD_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_MULTI_WORLD_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "tests/unit/transport/shm_world.h"
#include "tests/unit/transport/transport_world.h"
#include "transport/multi_transport.h"
#include "transport/shm_transport.h"
#include "transport/zmq_transport.h"

namespace tandem {

// The part of an address with several ways that begins with `scheme`; empty if there is none.
inline std::string WayOf(const std::string& address, const std::string& scheme) {
  for (const absl::string_view part : absl::StrSplit(address, ' ')) {
    if (absl::StartsWith(part, scheme)) return std::string(part);
  }
  return "";
}

// `address` names both ways, or is empty.
inline transport::MultiOptions ShmAndZmq(const std::string& address, transport::ShmOptions shm,
                                         transport::ZmqOptions zmq) {
  shm.address = WayOf(address, "shm:");
  shm.connect_retry = absl::ZeroDuration();
  if (!address.empty()) zmq.bind = WayOf(address, "tcp:");
  auto memory = transport::NewShmTransport(shm);
  TANDEM_CHECK_OK(memory.status());
  auto network = transport::NewZmqTransport(zmq);
  TANDEM_CHECK_OK(network.status());
  transport::MultiOptions options;
  options.ways.push_back({"shared memory", {"shm:"}, *std::move(memory)});
  options.ways.push_back(
      {"ZeroMQ", {"tcp://", "ipc://"}, *std::move(network), absl::Microseconds(200)});
  return options;
}

class MultiWorld final : public TransportWorld {
 public:
  std::unique_ptr<transport::Transport> New(const EndpointOptions& want) override {
    transport::ShmOptions shm;
    shm.send_queue_frames = want.send_queue_frames;
    shm.connect_deadline = want.connect_deadline;
    transport::ZmqOptions zmq;
    zmq.context = context_;
    zmq.send_queue_frames = want.send_queue_frames;
    zmq.connect_deadline = want.connect_deadline;
    zmq.linger = absl::Seconds(200);
    zmq.goodbye_wait = absl::Milliseconds(50);  // tests drive both ends from one thread
    return transport::NewMultiTransport(ShmAndZmq(want.address, shm, zmq));
  }
  std::string FreeAddress() override {  // free again by then
    return New({.address = TcpAddressForLater()})->address();
  }
  void SendRaw(const std::string& address, const Parts& parts) override {
    strangers_.SendRaw(WayOf(address, "shm:"), parts);
  }
  std::unique_ptr<Victim> NewVictim(const std::string& address,
                                    const std::string& connect_to) override {
    return std::make_unique<ChildVictim>(address.empty() ? "multi" : address, connect_to);
  }

 private:
  const std::shared_ptr<transport::ZmqContext> context_ =
      std::make_shared<transport::ZmqContext>(1);
  ShmWorld strangers_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_MULTI_WORLD_H_
