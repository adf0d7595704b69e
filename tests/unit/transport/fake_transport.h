// A transport that only notes what it is told to do.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_FAKE_TRANSPORT_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_FAKE_TRANSPORT_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "transport/transport.h"

namespace tandem {

// Connections that exist from the start, and queues that are full when the test says so.
class FakeTransport : public transport::Transport {
 public:
  Buffer Alloc(size_t bytes) override { return heap_.Alloc(bytes); }
  const std::string& address() const override { return address_; }
  absl::StatusOr<transport::PeerId> Connect(const std::string& address) override {
    if (address == "malformed") return absl::InvalidArgumentError(address);
    if (address == "exhausted") return absl::ResourceExhaustedError("no descriptors");
    connected[++last_peer] = address;
    return last_peer;
  }
  absl::Status Send(transport::PeerId peer, Frame frame) override {
    if (gone.count(peer) > 0) return absl::NotFoundError("gone");
    if (full.count(peer) > 0) return absl::ResourceExhaustedError("full");
    absl::StatusOr<ParsedFrame> parsed = DecodeFrame(std::move(frame));
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    sent.emplace_back(peer, parsed->header.step);
    last = *parsed;
    return absl::OkStatus();
  }
  void Close(transport::PeerId peer) override { closed.push_back(peer); }
  void Poll(absl::Duration, std::vector<transport::TransportEvent>*) override {}
  void Wake() override {}
  transport::TransportCounters counters() const override { return {}; }

  transport::PeerId last_peer = 0;
  std::map<transport::PeerId, std::string> connected;
  std::set<transport::PeerId> full, gone;
  std::vector<transport::PeerId> closed;
  std::vector<std::pair<transport::PeerId, int64_t>>
      sent;          // with the step, which tells frames apart
  ParsedFrame last;  // that was sent

 private:
  HeapBufferSource heap_;
  const std::string address_ = "fake:0";
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_FAKE_TRANSPORT_H_
