// Endpoints over RDMA for tests. TANDEM_RDMA_HOSTS: addresses with a device each, between which
// endpoints alternate ("10.9.0.1,10.9.0.2"); without it, the first usable device of this host.
#ifndef TANDEM_TESTS_UNIT_RDMA_RDMA_WORLD_H_
#define TANDEM_TESTS_UNIT_RDMA_RDMA_WORLD_H_

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "base/check.h"
#include "rdma/rdma_transport.h"
#include "tests/rdma/raw_peer.h"
#include "tests/unit/transport/transport_world.h"

namespace tandem {

class RdmaWorld final : public TransportWorld {
 public:
  // `base` is what all endpoints of this world have in common.
  explicit RdmaWorld(const rdma::RdmaOptions& base) : base_(base) {
    base_.ack_timeout = 16;  // one emulated processor serves both ends, and the kernel between
    const char* const hosts = std::getenv("TANDEM_RDMA_HOSTS");
    hosts_ = absl::StrSplit(hosts == nullptr ? "*" : hosts, ',');
    auto context = rdma::RdmaContext::New();
    if (context.ok()) {
      base_.context = *context;
    } else {
      missing_ = std::string(context.status().message());
    }
  }

  ~RdmaWorld() override {
    over_.Notify();
    for (std::thread& stranger : strangers_) stranger.join();
  }

  std::string missing() const override { return missing_; }
  std::unique_ptr<transport::Transport> New(const EndpointOptions& want) override {
    rdma::RdmaOptions options = base_;
    options.send_queue_frames = want.send_queue_frames;
    options.connect_deadline = want.connect_deadline;
    options.linger = absl::Seconds(200);
    options.bind = want.address.empty() ? Any() : want.address;
    return NewRdma(options);
  }
  std::unique_ptr<rdma::RdmaTransport> NewRdma(const rdma::RdmaOptions& options) {
    auto made = rdma::NewRdmaTransport(options);
    TANDEM_CHECK_OK(made.status());
    return *std::move(made);
  }
  rdma::RdmaOptions Options() {
    rdma::RdmaOptions options = base_;
    options.bind = Any();
    return options;
  }
  std::string FreeAddress() override { return New({})->address(); }  // free again by then
  // On a thread of its own: a connection is made while the endpoint polls, which is the test's
  // thread.
  void SendRaw(const std::string& address, const Parts& parts) override {
    strangers_.emplace_back([this, address, message = RawMessage(parts)] {
      auto peer = RawPeer::Connect(address, {});
      if (!peer.ok()) return;  // the test misses its message
      // What does not fit a receive buffer goes into the ring, as it would.
      const rdma::RdmaHello& to = (*peer)->endpoint();
      const absl::Status sent = message.size() <= to.message_bytes
                                    ? (*peer)->Send(message)
                                    : (*peer)->WriteToSlot(message, to.small_slots);
      sent.IgnoreError();
      over_.WaitForNotification();
    });
  }
  std::unique_ptr<Victim> NewVictim(const std::string& address,
                                    const std::string& connect_to) override {
    return std::make_unique<ChildVictim>(address.empty() ? Any() : address, connect_to);
  }
  // The next address, any port.
  std::string Any() { return absl::StrCat("rdma://", hosts_[turn_++ % hosts_.size()], ":*"); }

 private:
  rdma::RdmaOptions base_;
  std::vector<std::string> hosts_;
  size_t turn_ = 0;
  std::string missing_;
  absl::Notification over_;
  std::vector<std::thread> strangers_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_RDMA_RDMA_WORLD_H_
