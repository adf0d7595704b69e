#include "transport/zmq_frames.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"

namespace tandem::transport {
namespace {

// libzmq returns parts that came in its read batch of up to 8 KiB as pointers into that batch. Such
// pointers have odd addresses and keep the whole batch alive. Parts of this size are copied. Larger
// parts have memory of their own.
constexpr size_t kCopiedBytes = 8192;
// A ROUTER's name for a peer: a zero byte and a big-endian number.
constexpr size_t kRoutingIdBytes = 5;

}  // namespace

ZmqFrames::ZmqFrames() : spare_(parts_->Take()) { zmq_msg_init(&routing_id_); }

ZmqFrames::~ZmqFrames() {
  parts_->Give(spare_);
  zmq_msg_close(&routing_id_);
}

// ---- sending ----

SendRecord* ZmqFrames::NewRecord(Frame frame, std::shared_ptr<Flow> flow) {
  flow->Add();
  SendRecord* const record = records_->Take();
  record->frame = std::move(frame);
  record->flow = std::move(flow);
  return record;
}

void ZmqFrames::Send(void* dealer, SendRecord* record) {
  const int parts = record->frame.parts;
  record->parts_left.store(parts, std::memory_order_release);
  for (int i = 0; i < parts; ++i) {
    Buffer& part = record->frame.part[i];
    zmq_msg_t message;
    TANDEM_CHECK(zmq_msg_init_data(&message, part.mutable_data(), part.size(),
                                   &SendRecord::FreePart, record) == 0);
    const int flags = ZMQ_DONTWAIT | (i + 1 < parts ? ZMQ_SNDMORE : 0);
    HandOver(record);
    if (zmq_msg_send(&message, dealer, flags) < 0) zmq_msg_close(&message);
  }
}

bool ZmqFrames::SendTo(void* router, uint32_t to, SendRecord* record) {
  zmq_msg_t message;
  // so small that libzmq stores it in the message object itself
  zmq_msg_init_size(&message, kRoutingIdBytes);
  auto* const at = static_cast<uint8_t*>(zmq_msg_data(&message));
  at[0] = 0;
  for (int i = 1; i < 5; ++i) at[i] = static_cast<uint8_t>(to >> (8 * (4 - i)));
  if (zmq_msg_send(&message, router, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
    zmq_msg_close(&message);
    record->Release();
    return false;
  }
  Send(router, record);
  return true;
}

// ---- receiving ----

bool ZmqFrames::Receive(void* dealer, Received* out) {
  *out = Received();
  return ReceiveParts(dealer, 1, out);
}

bool ZmqFrames::ReceiveFrom(void* router, Received* out) {
  *out = Received();
  if (zmq_msg_recv(&routing_id_, router, ZMQ_DONTWAIT) < 0) return false;
  const auto* const at = static_cast<const uint8_t*>(zmq_msg_data(&routing_id_));
  if (zmq_msg_size(&routing_id_) == kRoutingIdBytes && at[0] == 0) {
    uint32_t number = 0;
    for (int i = 1; i < 5; ++i) number = number << 8 | at[i];
    out->from = number;
  }
  return ReceiveParts(router, zmq_msg_more(&routing_id_), out);
}

bool ZmqFrames::ReceiveParts(void* socket, int more, Received* out) {
  while (more > 0) {
    Buffer part;
    more = ReceivePart(socket, &part);
    if (more < 0) return false;  // possible only for the first part: messages arrive whole
    if (out->parts < kMaxFrameParts) out->frame.part[out->parts] = std::move(part);
    ++out->parts;
  }
  out->frame.parts = std::min(out->parts, kMaxFrameParts);
  return true;
}

// Returns -1: nothing there; 0: this was the last part of the message; 1: more parts follow.
int ZmqFrames::ReceivePart(void* socket, Buffer* part) {
  zmq_msg_t* const message = &spare_->message;
  if (zmq_msg_recv(message, socket, ZMQ_DONTWAIT) < 0) return -1;
  const int more = zmq_msg_more(message);
  auto* const data = static_cast<uint8_t*>(zmq_msg_data(message));
  const size_t size = zmq_msg_size(message);
  if (size == 0) return more;
  if (size <= kCopiedBytes || reinterpret_cast<uintptr_t>(data) % 8 != 0) {
    *part = CopyToBuffer(heap_, {data, size});
    zmq_msg_close(message);
    zmq_msg_init(message);
  } else {
    *part = Buffer(spare_, data, size);
    spare_ = parts_->Take();
  }
  return more;
}

}  // namespace tandem::transport
