// Shared memory for the conformance suite.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_SHM_WORLD_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_SHM_WORLD_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "tests/unit/transport/transport_world.h"
#include "transport/shm_transport.h"

namespace tandem {

class ShmWorld final : public TransportWorld {
 public:
  std::unique_ptr<transport::Transport> New(const EndpointOptions& want) override {
    transport::ShmOptions options;
    options.address = want.address;
    options.send_queue_frames = want.send_queue_frames;
    options.connect_deadline = want.connect_deadline;
    auto made = transport::NewShmTransport(options);
    TANDEM_CHECK_OK(made.status());
    return *std::move(made);
  }
  std::string FreeAddress() override { return New({})->address(); }  // free again by then
  void SendRaw(const std::string& address, const Parts& parts) override {
    auto socket = transport::UnixLink::Connect(address.substr(address.find('/') + 1));
    TANDEM_CHECK_OK(socket.status());
    auto link = transport::ShmChannel::New(*std::move(socket), shared_, 16);
    TANDEM_CHECK_OK(link.status());
    std::vector<Buffer> buffers;
    for (const auto& part : parts) buffers.push_back(CopyToBuffer(heap_, part));
    TANDEM_CHECK_OK((*link)->Send(buffers));
    strangers_.push_back(*std::move(link));
  }
  std::unique_ptr<Victim> NewVictim(const std::string& address,
                                    const std::string& connect_to) override {
    return std::make_unique<ChildVictim>(address.empty() ? "shm:" : address, connect_to);
  }

 private:
  HeapBufferSource heap_;
  transport::ShmArena arena_;
  transport::ShmStats stats_;
  const transport::ReceivedSpansOwner spans_ = transport::NewReceivedSpans();
  const transport::ShmShared shared_ = {&arena_, &heap_, spans_.get(), &stats_};
  std::vector<std::unique_ptr<transport::ShmChannel>> strangers_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_SHM_WORLD_H_
