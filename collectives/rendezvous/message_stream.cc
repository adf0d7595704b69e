#include "collectives/rendezvous/message_stream.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/links/tcp_socket.h"

namespace tandem::collectives {
namespace {

constexpr size_t kLengthBytes = 4;
// The most bytes that may wait for a peer that does not read.
constexpr size_t kMaxQueuedBytes = size_t{64} << 20;

void AppendLength(size_t length, std::string* out) {
  TANDEM_CHECK(length <= UINT32_MAX);
  for (size_t i = 0; i < kLengthBytes; ++i) out->push_back(static_cast<char>(length >> (8 * i)));
}

void AppendBytes(absl::string_view bytes, std::string* out) {
  AppendLength(bytes.size(), out);
  absl::StrAppend(out, bytes);
}

}  // namespace

MessageStream::MessageStream(OwnedFd socket, size_t max_message_bytes,
                             std::unique_ptr<transport::Proof> proof)
    : socket_(std::move(socket)), max_bytes_(max_message_bytes), proof_(std::move(proof)) {
  if (proof_ != nullptr && proof_->connects()) AppendBytes(proof_->Hello(), &out_);
}

absl::Status MessageStream::Receive() {
  std::array<char, 16384> bytes;
  // Stop at one message: bytes that were not used yet come first, and a peer cannot make this
  // process hold more than one message and a little.
  while (in_.size() < max_bytes_ + kLengthBytes) {
    const ssize_t n = recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (n > 0) {
      in_.append(bytes.data(), static_cast<size_t>(n));
    } else if (n == 0) {
      return absl::UnavailableError("connection closed by the peer");
    } else if (errno == EAGAIN) {
      return absl::OkStatus();
    } else if (errno != EINTR) {
      return ConnectionError(errno);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<size_t>> MessageStream::NextLength() const {
  if (in_.size() < kLengthBytes) return absl::nullopt;
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint32_t>(static_cast<uint8_t>(in_[i])) << (8 * i);
  }
  if (length > max_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", length, " bytes, at most ", max_bytes_, " are allowed"));
  }
  if (in_.size() < kLengthBytes + length) return absl::nullopt;
  return absl::optional<size_t>(length);
}

absl::StatusOr<bool> MessageStream::Next(google::protobuf::MessageLite* message) {
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const absl::optional<size_t> length, NextLength());
    if (!length.has_value()) return false;
    if (proof_ == nullptr) {
      if (!message->ParseFromArray(in_.data() + kLengthBytes, static_cast<int>(*length))) {
        return absl::InvalidArgumentError(absl::StrCat(*length, " bytes that are not a message"));
      }
      in_.erase(0, kLengthBytes + *length);
      return true;
    }
    TANDEM_RETURN_IF_ERROR(TakeProof(absl::string_view(in_).substr(kLengthBytes, *length)));
    in_.erase(0, kLengthBytes + *length);
  }
}

// Answers at once, because the caller only flushes after messages of its own.
absl::Status MessageStream::TakeProof(absl::string_view bytes) {
  TANDEM_ASSIGN_OR_RETURN(const std::string answer, proof_->Take(bytes));
  if (!answer.empty()) AppendBytes(answer, &out_);
  if (proof_->done()) {
    proof_.reset();
    out_ += std::exchange(held_, std::string());
  }
  (void)Flush();  // a failure shows when the socket is read
  return absl::OkStatus();
}

void MessageStream::Send(const google::protobuf::MessageLite& message) {
  std::string* const out = proof_ != nullptr ? &held_ : &out_;
  AppendLength(message.ByteSizeLong(), out);
  TANDEM_CHECK(message.AppendToString(out));
}

void MessageStream::SendUnproven(const google::protobuf::MessageLite& message) {
  proof_.reset();
  Send(message);
}

absl::Status MessageStream::Flush() {
  size_t sent = 0;
  absl::Status status;
  while (sent < out_.size()) {
    const ssize_t n =
        send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      status = ConnectionError(errno);
      break;
    }
  }
  out_.erase(0, sent);
  if (status.ok() && out_.size() > kMaxQueuedBytes) {
    return absl::ResourceExhaustedError("the peer does not read its messages");
  }
  return status;
}

}  // namespace tandem::collectives
