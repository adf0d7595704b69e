// A peer that follows no protocol: connects to an endpoint with verbs and sends what a test says.
//
// Blocking; for one thread. Failures of the connection are results, not errors of the test.
#ifndef TANDEM_TESTS_RDMA_RAW_PEER_H_
#define TANDEM_TESTS_RDMA_RAW_PEER_H_

#include <rdma/rdma_cma.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rdma/wire.h"

namespace tandem {

class RawPeer {
 public:
  struct Options {
    std::string from;            // host; empty: the same as the endpoint's
    std::vector<uint8_t> hello;  // private data; empty: a proper hello
    uint16_t credits = 64;       // of a proper hello
  };

  // FAILED_PRECONDITION: refused, with what the endpoint said.
  static absl::StatusOr<std::unique_ptr<RawPeer>> Connect(const std::string& address,
                                                          const Options& options);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  const rdma::RdmaHello& endpoint() const { return endpoint_; }

  // Each waits for the device's answer.
  absl::Status Send(absl::Span<const uint8_t> bytes);
  absl::Status Write(absl::Span<const uint8_t> bytes, uint64_t address, uint32_t key);
  absl::Status WriteToSlot(absl::Span<const uint8_t> bytes, uint32_t slot);
  absl::Status Read(size_t bytes, uint64_t address, uint32_t key);
  // Posts without waiting.
  void PostSend(absl::Span<const uint8_t> bytes);
  // Waits for the next message from the endpoint; CANCELLED when the connection breaks.
  absl::StatusOr<std::vector<uint8_t>> Receive();
  // Puts the queue pair into the error state, as a broken device would.
  void BreakQueuePair();

 private:
  RawPeer() = default;
  absl::Status Init(const std::string& address, const Options& options);
  absl::Status WaitFor(rdma_cm_event_type wanted, std::vector<uint8_t>* data);
  absl::Status Post(ibv_send_wr* request, absl::Span<const uint8_t> bytes);
  absl::Status Next(ibv_wc* completion);
  void PostReceive(size_t index);

  rdma_event_channel* channel_ = nullptr;
  rdma_cm_id* id_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::vector<uint8_t> memory_;
  rdma::RdmaHello endpoint_;
  std::vector<std::vector<uint8_t>> received_;
};

// A message with these parts, as many as there are; only the first four have their sizes told.
std::vector<uint8_t> RawMessage(const std::vector<std::vector<uint8_t>>& parts);

}  // namespace tandem

#endif  // TANDEM_TESTS_RDMA_RAW_PEER_H_
