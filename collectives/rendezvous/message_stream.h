// MessageStream: protobuf messages over a connected, non-blocking stream socket. Each message
// follows its length, a little-endian u32. Both directions are bounded.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_

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

  // Reads the bytes that have arrived. UNAVAILABLE: the connection has ended; Next still returns
  // the messages that came before.
  absl::Status Receive();
  // Returns the next message; false if it has not arrived completely. INVALID_ARGUMENT: the bytes
  // are not a message, or too many.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite* message);

  // Queues a message; Flush sends what the socket takes.
  void Send(const google::protobuf::MessageLite& message);
  // UNAVAILABLE: the connection has ended. RESOURCE_EXHAUSTED: the peer does not read.
  absl::Status Flush();

  // Gives away the socket, for another use, and the bytes that were received but not used.
  std::pair<OwnedFd, std::string> Release() { return {std::move(socket_), std::move(in_)}; }

 private:
  OwnedFd socket_;
  size_t max_bytes_;
  std::string in_, out_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_
