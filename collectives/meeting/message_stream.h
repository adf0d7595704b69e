// Protobuf messages over a connected, non-blocking stream socket: a little-endian u32 length, then
// the message. Bounded in both directions.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_MEETING_MESSAGE_STREAM_H_
#define TANDEM_COLLECTIVES_MEETING_MESSAGE_STREAM_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/owned_fd.h"
#include "google/protobuf/message_lite.h"

namespace tandem::collectives {

class MessageStream {
 public:
  MessageStream(OwnedFd socket, size_t max_message_bytes)
      : socket_(std::move(socket)), max_bytes_(max_message_bytes) {}

  int fd() const { return socket_.get(); }
  bool WantsWritable() const { return !out_.empty(); }

  // Takes what has arrived. UNAVAILABLE: the connection has ended; what came before can still be
  // had from Next.
  absl::Status Receive();
  // The next message, if it is there as a whole. INVALID_ARGUMENT: that is none.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite* message);

  // Queues a message; Flush sends what the socket takes.
  void Send(const google::protobuf::MessageLite& message);
  // UNAVAILABLE: the connection has ended. RESOURCE_EXHAUSTED: the peer does not read.
  absl::Status Flush();

  // The socket, for another use, and what has been received and not taken.
  std::pair<OwnedFd, std::string> Release() { return {std::move(socket_), std::move(in_)}; }

 private:
  OwnedFd socket_;
  size_t max_bytes_;
  std::string in_, out_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_MESSAGE_STREAM_H_
