// ZmqFrames converts between frames and multi-part messages of libzmq. Outgoing buffers and large
// incoming parts are not copied.
//
// Thread safety: none; each transport has its own. Only buffers that libzmq's I/O threads give back
// (zmq_parts.h) come from other threads.
#ifndef TANDEM_TRANSPORT_ZMQ_FRAMES_H_
#define TANDEM_TRANSPORT_ZMQ_FRAMES_H_

#include <zmq.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "base/buffer.h"
#include "proto/frame.h"
#include "transport/recycle_pool.h"
#include "transport/zmq_parts.h"

namespace tandem::transport {

class ZmqFrames {
 public:
  struct Received {
    // the ROUTER's number of the peer; none if the peer chose its own id
    std::optional<uint32_t> from;
    Frame frame;
    int parts = 0;  // as sent; the frame keeps at most kMaxFrameParts
  };

  ZmqFrames();
  ~ZmqFrames();
  ZmqFrames(const ZmqFrames&) = delete;
  ZmqFrames& operator=(const ZmqFrames&) = delete;

  // Makes a record of a frame to send. `flow` counts it until it is released: by libzmq when it has
  // sent or dropped the frame, or by the caller that does not send it.
  SendRecord* NewRecord(Frame frame, std::shared_ptr<Flow> flow);
  // Gives the record to libzmq. If a part cannot be sent, it and the rest of its frame are dropped:
  // libzmq has lost the connection, and reports this to the monitor or at the next probe.
  void Send(void* dealer, SendRecord* record);
  // The same to peer `to` of a ROUTER. False: the peer is gone, and the record was released.
  bool SendTo(void* router, uint32_t to, SendRecord* record);

  // Reads one message of a DEALER, if there is one.
  bool Receive(void* dealer, Received* out);
  bool ReceiveFrom(void* router, Received* out);

 private:
  bool ReceiveParts(void* socket, int more, Received* out);
  int ReceivePart(void* socket, Buffer* part);

  HeapBufferSource heap_;
  RecyclePool<SendRecord>::Owner records_ = RecyclePool<SendRecord>::New();
  RecyclePool<ReceivedPart>::Owner parts_ = RecyclePool<ReceivedPart>::New();
  zmq_msg_t routing_id_;           // scratch of ReceiveFrom
  ReceivedPart* spare_ = nullptr;  // scratch of ReceivePart
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_ZMQ_FRAMES_H_
