#include "rdma/rdma_transport.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rdma/context.h"
#include "rdma/endpoint.h"
#include "rdma/wire.h"

namespace tandem::rdma {
namespace {

class RdmaTransportImpl final : public RdmaTransport {
 public:
  explicit RdmaTransportImpl(const RdmaOptions& options)
      : endpoint_(std::make_unique<RdmaEndpoint>(options)) {}
  ~RdmaTransportImpl() override {
    if (!started_) return;
    const std::shared_ptr<RdmaContextImpl> context = endpoint_->Retire();
    if (!endpoint_->empty()) context->SeeOff(std::move(endpoint_));
  }
  absl::Status Start() {
    TANDEM_RETURN_IF_ERROR(endpoint_->Start());
    started_ = true;
    return absl::OkStatus();
  }

  Buffer Alloc(size_t bytes) override { return endpoint_->Alloc(bytes); }
  const std::string& address() const override { return endpoint_->address(); }
  absl::StatusOr<transport::PeerId> Connect(const std::string& address) override {
    return endpoint_->Connect(address);
  }
  absl::Status Send(transport::PeerId id, Frame frame) override {
    return endpoint_->Send(id, std::move(frame));
  }
  void Close(transport::PeerId id) override { endpoint_->Close(id); }
  void Poll(absl::Duration timeout, std::vector<transport::TransportEvent>* events) override {
    endpoint_->Poll(timeout, events);
  }
  void Wake() override { endpoint_->Wake(); }
  int wait_fd() const override { return endpoint_->wait_fd(); }
  bool BeginWait(RdmaEndpoint::Clock::time_point* until) override {
    return endpoint_->BeginWait(until);
  }
  void EndWait(bool readable) override { endpoint_->EndWait(readable); }
  transport::TransportCounters counters() const override { return endpoint_->counters(); }
  RdmaCounters rdma_counters() const override { return endpoint_->rdma_counters(); }
  const std::string& device() const override { return endpoint_->device(); }

 private:
  std::unique_ptr<RdmaEndpoint> endpoint_;
  bool started_ = false;
};

absl::Status CheckOptions(const RdmaOptions& options) {
  if (options.context == nullptr) return absl::InvalidArgumentError("an RdmaContext is required");
  if (options.send_queue_frames < 1 || options.min_peers < 1 ||
      options.max_peers < options.min_peers || options.max_part_bytes < 1 ||
      options.max_part_bytes > kMaxPartBytes || options.send_depth < 32 ||
      options.send_depth > 16384 || options.credits > 16384 || options.ack_timeout < 1 ||
      options.ack_timeout > 31) {
    return absl::InvalidArgumentError(absl::StrCat(
        "an RDMA option is out of range: send_queue_frames ", options.send_queue_frames,
        ", max_peers ", options.max_peers, ", max_part_bytes ", options.max_part_bytes,
        ", send_depth ", options.send_depth, ", credits ", options.credits));
  }
  uint8_t bytes[kRdmaHelloBytes];
  EncodeRdmaHello(GrantOf(options), bytes);
  return DecodeRdmaHello(bytes).status();  // check it as a peer would
}

}  // namespace

absl::StatusOr<std::unique_ptr<RdmaTransport>> NewRdmaTransport(const RdmaOptions& options) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options));
  auto transport = std::make_unique<RdmaTransportImpl>(options);
  TANDEM_RETURN_IF_ERROR(transport->Start());
  return transport;
}

}  // namespace tandem::rdma
