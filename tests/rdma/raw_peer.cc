#include "tests/rdma/raw_peer.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

constexpr size_t kReceives = 64, kReceiveBytes = 4096;
constexpr size_t kSendBytes = size_t{1} << 20;
constexpr uint64_t kReceiveMark = 1000;  // in wr_id, plus the index

sockaddr_storage Resolve(const std::string& host, const std::string& port) {
  addrinfo* found = nullptr;
  TANDEM_CHECK(getaddrinfo(host.c_str(), port.c_str(), nullptr, &found) == 0);
  sockaddr_storage out = {};
  std::memcpy(&out, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RawPeer>> RawPeer::Connect(const std::string& address,
                                                          const Options& options) {
  std::unique_ptr<RawPeer> peer(new RawPeer);
  TANDEM_RETURN_IF_ERROR(peer->Init(address, options));
  return peer;
}

absl::Status RawPeer::Init(const std::string& address, const Options& options) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(7, colon - 7);  // after rdma://
  sockaddr_storage to = Resolve(host, address.substr(colon + 1));
  sockaddr_storage from = Resolve(options.from.empty() ? host : options.from, "0");
  channel_ = rdma_create_event_channel();
  TANDEM_CHECK(channel_ != nullptr);
  TANDEM_CHECK(rdma_create_id(channel_, &id_, nullptr, RDMA_PS_TCP) == 0);
  TANDEM_CHECK(rdma_resolve_addr(id_, reinterpret_cast<sockaddr*>(&from),
                                 reinterpret_cast<sockaddr*>(&to), 5000) == 0);
  TANDEM_RETURN_IF_ERROR(WaitFor(RDMA_CM_EVENT_ADDR_RESOLVED, nullptr));
  uint8_t timeout = 16;  // of acknowledgements; left alone it is half a minute in all
  rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout);
  TANDEM_CHECK(rdma_resolve_route(id_, 5000) == 0);
  TANDEM_RETURN_IF_ERROR(WaitFor(RDMA_CM_EVENT_ROUTE_RESOLVED, nullptr));
  TANDEM_CHECK((pd_ = ibv_alloc_pd(id_->verbs)) != nullptr);
  TANDEM_CHECK((cq_ = ibv_create_cq(id_->verbs, 1024, nullptr, nullptr, 0)) != nullptr);
  memory_.resize(kReceives * kReceiveBytes + kSendBytes);
  region_ = ibv_reg_mr(pd_, memory_.data(), memory_.size(),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  TANDEM_CHECK(region_ != nullptr);
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = attributes.recv_cq = cq_;
  attributes.qp_type = IBV_QPT_RC;
  attributes.sq_sig_all = 1;
  attributes.cap = {512, kReceives, 1, 1, 0};
  TANDEM_CHECK(rdma_create_qp(id_, pd_, &attributes) == 0);
  for (size_t i = 0; i < kReceives; ++i) PostReceive(i);

  rdma::RdmaHello hello;
  hello.ring_address = reinterpret_cast<uintptr_t>(memory_.data());
  hello.ring_key = region_->rkey;
  hello.small_slot_bytes = hello.large_slot_bytes = kReceiveBytes;
  hello.small_slots = hello.large_slots = 1;
  hello.credits = options.credits;
  hello.message_bytes = kReceiveBytes;
  std::vector<uint8_t> data(rdma::kRdmaHelloBytes);
  rdma::EncodeRdmaHello(hello, data.data());
  if (!options.hello.empty()) data = options.hello;
  rdma_conn_param parameters = {};
  parameters.private_data = data.data();
  parameters.private_data_len = static_cast<uint8_t>(data.size());
  parameters.responder_resources = parameters.initiator_depth = 4;
  parameters.retry_count = 6;
  parameters.rnr_retry_count = 6;
  TANDEM_CHECK(rdma_connect(id_, &parameters) == 0);
  std::vector<uint8_t> answer;
  TANDEM_RETURN_IF_ERROR(WaitFor(RDMA_CM_EVENT_ESTABLISHED, &answer));
  TANDEM_ASSIGN_OR_RETURN(endpoint_, rdma::DecodeRdmaHello(answer));
  return absl::OkStatus();
}

absl::Status RawPeer::WaitFor(rdma_cm_event_type wanted, std::vector<uint8_t>* data) {
  rdma_cm_event* event = nullptr;
  TANDEM_CHECK(rdma_get_cm_event(channel_, &event) == 0);
  const rdma_cm_event_type got = event->event;
  const auto* const bytes = static_cast<const char*>(event->param.conn.private_data);
  const size_t size = bytes == nullptr ? 0 : event->param.conn.private_data_len;
  std::string said(bytes == nullptr ? "" : bytes, size);
  rdma_ack_cm_event(event);
  if (got == wanted) {
    if (data != nullptr) data->assign(said.begin(), said.end());
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(rdma_event_str(got), ": ", said.substr(0, said.find('\0'))));
}

RawPeer::~RawPeer() {
  if (id_ != nullptr) {
    if (id_->qp != nullptr) {
      rdma_disconnect(id_);
      rdma_destroy_qp(id_);
    }
  }
  if (region_ != nullptr) ibv_dereg_mr(region_);
  if (cq_ != nullptr) ibv_destroy_cq(cq_);
  if (pd_ != nullptr) ibv_dealloc_pd(pd_);
  if (id_ != nullptr) rdma_destroy_id(id_);
  if (channel_ != nullptr) rdma_destroy_event_channel(channel_);
}

void RawPeer::PostReceive(size_t index) {
  ibv_sge piece = {reinterpret_cast<uintptr_t>(memory_.data()) + index * kReceiveBytes,
                   kReceiveBytes, region_->lkey};
  ibv_recv_wr request = {}, *bad = nullptr;
  request.wr_id = kReceiveMark + index;
  request.sg_list = &piece;
  request.num_sge = 1;
  TANDEM_CHECK(ibv_post_recv(id_->qp, &request, &bad) == 0);
}

// The next completion; of messages, the bytes are kept.
absl::Status RawPeer::Next(ibv_wc* completion) {
  while (ibv_poll_cq(cq_, 1, completion) == 0) {
  }
  if (completion->status != IBV_WC_SUCCESS) {
    return absl::CancelledError(ibv_wc_status_str(completion->status));
  }
  if (completion->wr_id >= kReceiveMark) {
    const size_t index = completion->wr_id - kReceiveMark;
    const uint8_t* const at = memory_.data() + index * kReceiveBytes;
    received_.emplace_back(at, at + completion->byte_len);
    PostReceive(index);
  }
  return absl::OkStatus();
}

absl::Status RawPeer::Post(ibv_send_wr* request, absl::Span<const uint8_t> bytes) {
  TANDEM_CHECK(bytes.size() <= kSendBytes);
  uint8_t* const at = memory_.data() + kReceives * kReceiveBytes;
  if (bytes.data() != nullptr) std::memcpy(at, bytes.data(), bytes.size());
  ibv_sge piece = {reinterpret_cast<uintptr_t>(at), static_cast<uint32_t>(bytes.size()),
                   region_->lkey};
  request->sg_list = &piece;
  request->num_sge = 1;
  ibv_send_wr* bad = nullptr;
  if (ibv_post_send(id_->qp, request, &bad) != 0) return absl::CancelledError("ibv_post_send");
  ibv_wc completion = {};
  do {
    TANDEM_RETURN_IF_ERROR(Next(&completion));
  } while (completion.wr_id >= kReceiveMark);
  return absl::OkStatus();
}

absl::Status RawPeer::Send(absl::Span<const uint8_t> bytes) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_SEND;
  return Post(&request, bytes);
}

void RawPeer::PostSend(absl::Span<const uint8_t> bytes) {
  uint8_t* const at = memory_.data() + kReceives * kReceiveBytes;
  std::memcpy(at, bytes.data(), bytes.size());
  ibv_sge piece = {reinterpret_cast<uintptr_t>(at), static_cast<uint32_t>(bytes.size()),
                   region_->lkey};
  ibv_send_wr request = {}, *bad = nullptr;
  request.opcode = IBV_WR_SEND;
  request.sg_list = &piece;
  request.num_sge = 1;
  ibv_post_send(id_->qp, &request, &bad);
}

absl::Status RawPeer::Write(absl::Span<const uint8_t> bytes, uint64_t address, uint32_t key) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE;
  request.wr.rdma = {address, key};
  return Post(&request, bytes);
}

absl::Status RawPeer::WriteToSlot(absl::Span<const uint8_t> bytes, uint32_t slot) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.imm_data = htonl(slot);
  const int inside = slot < static_cast<uint32_t>(endpoint_.slots()) ? static_cast<int>(slot) : 0;
  request.wr.rdma = {endpoint_.ring_address + endpoint_.SlotOffset(inside), endpoint_.ring_key};
  return Post(&request, bytes);
}

absl::Status RawPeer::Read(size_t bytes, uint64_t address, uint32_t key) {
  ibv_send_wr request = {};
  request.opcode = IBV_WR_RDMA_READ;
  request.wr.rdma = {address, key};
  return Post(&request, absl::Span<const uint8_t>(static_cast<const uint8_t*>(nullptr), bytes));
}

absl::StatusOr<std::vector<uint8_t>> RawPeer::Receive() {
  ibv_wc completion = {};
  while (received_.empty()) {
    TANDEM_RETURN_IF_ERROR(Next(&completion));
  }
  std::vector<uint8_t> first = std::move(received_.front());
  received_.erase(received_.begin());
  return first;
}

void RawPeer::BreakQueuePair() {
  ibv_qp_attr attributes = {};
  attributes.qp_state = IBV_QPS_ERR;
  TANDEM_CHECK(ibv_modify_qp(id_->qp, &attributes, IBV_QP_STATE) == 0);
}

std::vector<uint8_t> RawMessage(const std::vector<std::vector<uint8_t>>& parts) {
  rdma::RdmaMessage message;
  message.kind = rdma::RdmaMessageKind::kFrame;
  message.parts = static_cast<uint16_t>(parts.size());
  for (size_t i = 0; i < parts.size() && i < size_t{kMaxFrameParts}; ++i) {
    message.part_bytes[i] = parts[i].size();
  }
  std::vector<uint8_t> bytes(rdma::kRdmaHeadBytes);
  rdma::EncodeRdmaHead(message, bytes.data());
  for (const auto& part : parts) {
    bytes.insert(bytes.end(), part.begin(), part.end());
    bytes.resize(rdma::PadTo8(bytes.size()));
  }
  return bytes;
}

}  // namespace tandem
