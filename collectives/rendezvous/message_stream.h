// MessageStream: protobuf messages over a connected, non-blocking stream socket. Each message
// follows its length, a little-endian u32. Both directions are bounded.
//
// With a proof, both ends first show each other that they have the token of the job
// (transport/proof.h). Messages for the peer wait until then, and no message of the peer is parsed.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/owned_fd.h"
#include "google/protobuf/message_lite.h"
#include "transport/proof.h"

namespace tandem::collectives {

class MessageStream {
 public:
  // `proof`: null if the group has no token.
  MessageStream(OwnedFd socket, size_t max_message_bytes,
                std::unique_ptr<transport::Proof> proof = nullptr);

  int fd() const { return socket_.get(); }
  bool WantsWritable() const { return !out_.empty(); }
  bool proving() const { return proof_ != nullptr; }  // the peer has not shown its token yet

  // Reads the bytes that have arrived. UNAVAILABLE: the connection has ended; Next still returns
  // the messages that came before.
  absl::Status Receive();
  // Returns the next message; false if it has not arrived completely. INVALID_ARGUMENT: the bytes
  // are not a message, or too many. UNAUTHENTICATED: the peer has no token, or another one.
  absl::StatusOr<bool> Next(google::protobuf::MessageLite* message);

  // Queues a message; Flush sends what the socket takes.
  void Send(const google::protobuf::MessageLite& message);
  // Queues a message for a peer without the token, as the last one.
  void SendUnproven(const google::protobuf::MessageLite& message);
  // UNAVAILABLE: the connection has ended. RESOURCE_EXHAUSTED: the peer does not read.
  absl::Status Flush();

  // Gives away the socket, for another use, and the bytes that were received but not used.
  std::pair<OwnedFd, std::string> Release() { return {std::move(socket_), std::move(in_)}; }

 private:
  // The length of the message at the begin of in_, if it has arrived completely.
  absl::StatusOr<absl::optional<size_t>> NextLength() const;
  absl::Status TakeProof(absl::string_view bytes);

  OwnedFd socket_;
  size_t max_bytes_;
  std::string in_, out_;
  std::unique_ptr<transport::Proof> proof_;  // null once the peer has shown its token
  std::string held_;                         // messages that wait for that
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_MESSAGE_STREAM_H_
