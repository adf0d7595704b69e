// Frames as messages of libzmq with several parts: into a socket, and out of one. Buffers go out,
// and large parts come in, without being copied.
//
// Thread safety: none, one transport's own; only what libzmq's I/O threads give back (zmq_parts.h)
// comes from other threads.
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
    std::optional<uint32_t> from;  // the ROUTER's number of the peer; none if it is not one it gave
    Frame frame;
    int parts = 0;  // as sent; the frame keeps at most kMaxFrameParts
  };

  ZmqFrames();
  ~ZmqFrames();
  ZmqFrames(const ZmqFrames&) = delete;
  ZmqFrames& operator=(const ZmqFrames&) = delete;

  // A frame that is to be sent, counted in `flow` until it is released: by libzmq when it has sent
  // or dropped it, or by whoever does not send it.
  SendRecord* NewRecord(Frame frame, std::shared_ptr<Flow> flow);
  // Gives it to libzmq. A part that cannot be sent is dropped with the rest of its frame: libzmq has
  // lost the connection, and says so to the monitor or to the next probe.
  void Send(void* dealer, SendRecord* record);
  // The same to peer `to` of a ROUTER. False, and the record released, if it is gone.
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
