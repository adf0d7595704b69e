// A process for tests to kill: an endpoint over ZeroMQ, RDMA or shared memory (as the address says)
// that prints its address and sends back every frame it gets.
//
//   transport_victim BIND [CONNECT]   with CONNECT, it connects there and says hello (one empty
//   ACK)
//
// It dies with its parent, so that a failing test leaves nothing behind.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "rdma/rdma_transport.h"
#include "tests/unit/transport/multi_world.h"
#include "transport/shm_transport.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

absl::StatusOr<std::unique_ptr<transport::Transport>> NewTransport(const std::string& bind) {
  if (bind.rfind("rdma://", 0) == 0) {
    rdma::RdmaOptions options;
    options.bind = bind;
    options.ack_timeout = 16;  // one emulated processor serves both ends, and the kernel between
    TANDEM_ASSIGN_OR_RETURN(options.context, rdma::RdmaContext::New());
    return rdma::NewRdmaTransport(options);
  }
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(1);
  if (const char* const token = std::getenv("TANDEM_TOKEN"); token != nullptr) {
    options.keys = std::make_shared<transport::JobKeys>(*transport::JobKeys::FromToken(token));
    options.encrypted = std::getenv("TANDEM_NOT_ENCRYPTED") == nullptr;
  }
  if (bind == "multi" || bind.find(' ') != std::string::npos) {
    return transport::NewMultiTransport(
        ShmAndZmq(bind == "multi" ? "" : bind, transport::ShmOptions(), options));
  }
  if (bind.rfind("shm:", 0) == 0) {
    transport::ShmOptions shm;
    if (bind != "shm:") shm.address = bind;  // "shm:" alone: any
    return transport::NewShmTransport(shm);
  }
  options.bind = bind;
  return transport::NewZmqTransport(options);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  using namespace tandem;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  TANDEM_CHECK(argc >= 2);
  auto transport = NewTransport(argv[1]);
  TANDEM_CHECK_OK(transport.status());
  std::printf("%s\n", (*transport)->address().c_str());
  std::fflush(stdout);
  if (argc > 2) {
    auto peer = (*transport)->Connect(argv[2]);
    TANDEM_CHECK_OK(peer.status());
    FrameHeader hello;
    hello.kind = FrameKind::kAck;
    TANDEM_CHECK_OK(
        (*transport)->Send(*peer, EncodeDataFrame(**transport, hello, {}, Buffer(), Buffer())));
  }
  for (std::vector<transport::TransportEvent> events;; events.clear()) {
    (*transport)->Poll(absl::InfiniteDuration(), &events);
    for (transport::TransportEvent& event : events) {
      if (event.kind != transport::TransportEvent::Kind::kFrame) continue;
      // A refused answer is the test's concern: it sees it missing.
      (*transport)->Send(event.peer, std::move(event.frame.frame)).IgnoreError();
    }
  }
}
