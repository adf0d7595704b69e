// Links over a Transport, e.g. RDMA or ZeroMQ: each rank has one endpoint, and over it one link to
// each of its peers.
//
// The bytes of a link travel as SEGMENT frames (proto/frame.md, frame_link.h) over a connection
// that loses nothing: what is written is copied once, into a buffer of the transport, from which an
// RDMA device sends it, and is read where the transport has received it. A link takes no more than
// the peer has room for (`window_frames` frames that it has not read), and a transport carries as
// much without help. So what a link has taken arrives, whether or not this rank looks at it again.
//
// The first frame of either side is a GREETING: who connects says who it is, and the other admits
// or refuses it. Whoever says anything else is shut out.
//
// Failure of a link: UNAVAILABLE after the last byte, "connection closed by the peer" or why the
// transport lost it.
//
// Thread safety: none. A hub and its links are used by one thread, that of the group's engine; each
// call that finds nothing lets the transport go on for all of them.
#ifndef TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/links/frame_link.h"
#include "collectives/links/link.h"
#include "transport/waitable.h"

namespace tandem::collectives {

class TransportHub;

class TransportLink final : public Link {
 public:
  // A segment of 128 KiB and the header of its message fill a frame.
  static constexpr size_t kFrameBytes = (size_t{128} << 10) + 64;
  static constexpr size_t kWindowFrames = 16;
  static constexpr size_t kWindowBytes = kWindowFrames * kFrameBytes;

  // Made by a hub. Ends the connection in order; what was written before still arrives.
  ~TransportLink() override;
  TransportLink(const TransportLink&) = delete;
  TransportLink& operator=(const TransportLink&) = delete;

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;
  int fd() const override;
  bool PrepareToSleep() override;
  void WakeUp() override;
  absl::string_view kind() const override;

  // Of a link that was connected: what the peer answered, once it has answered. Nothing may be
  // written before that.
  const absl::optional<std::string>& answer() const { return answer_; }
  // Why the connection is over, if it is.
  const absl::Status& failure() const { return failure_; }

 private:
  friend class TransportHub;
  TransportLink(std::shared_ptr<TransportHub> hub, transport::PeerId peer, uint64_t incarnation);
  void Flush();
  void OnFrame(const ParsedFrame& frame);
  void Fail(absl::Status why);
  void LookAround();

  const std::shared_ptr<TransportHub> hub_;
  const transport::PeerId peer_;
  FrameLink frames_;
  absl::optional<std::string> answer_;
  absl::Status failure_;
  std::vector<Frame> out_;  // what the transport has not taken, from out_begin_ on
  size_t out_begin_ = 0;
  bool news_ = false;  // something has come that no call has looked for since
  bool send_failed_ = false;
};

// A rank's endpoint, and who connects to it.
class TransportHub : public std::enable_shared_from_this<TransportHub> {
 public:
  static constexpr size_t kMaxGreetingBytes = 256;

  // `kind`: of the links, e.g. "rdma".
  static std::shared_ptr<TransportHub> New(std::unique_ptr<transport::WaitableTransport> transport,
                                           absl::string_view kind);

  const std::string& address() const { return transport_->address(); }
  const std::string& kind() const { return kind_; }
  const transport::Transport& transport() const { return *transport_; }  // e.g. for its counters

  // A link that waits for its answer. `incarnation` is the same on both ends. INVALID_ARGUMENT:
  // `address` cannot be one.
  absl::StatusOr<std::unique_ptr<TransportLink>> Connect(const std::string& address,
                                                         uint64_t incarnation,
                                                         absl::string_view greeting);

  struct Newcomer {
    transport::PeerId peer = 0;
    std::string greeting;
  };
  // Who has greeted, and has neither been admitted nor refused; those that come first, first.
  absl::optional<Newcomer> NextNewcomer();
  std::unique_ptr<TransportLink> Admit(const Newcomer& newcomer, uint64_t incarnation,
                                       absl::string_view answer);
  void Refuse(const Newcomer& newcomer, absl::string_view answer);

  // Lets the transport go on; true if anything has happened. Never waits.
  bool Poll();
  // As Link's of these names.
  int fd() const { return transport_->wait_fd(); }
  bool PrepareToSleep();
  void WakeUp();

 private:
  friend class TransportLink;
  // A thousand strangers do no harm, and more are not listened to.
  static constexpr size_t kMaxNewcomers = 1024;

  TransportHub(std::unique_ptr<transport::WaitableTransport> transport, absl::string_view kind)
      : transport_(std::move(transport)), kind_(kind) {}
  void Handle(const transport::TransportEvent& event);
  void OnStranger(const transport::TransportEvent& event);
  void Greet(transport::PeerId peer, uint64_t incarnation, absl::string_view text);
  std::unique_ptr<TransportLink> NewLink(transport::PeerId peer, uint64_t incarnation);

  const std::unique_ptr<transport::WaitableTransport> transport_;
  const std::string kind_;
  absl::flat_hash_map<transport::PeerId, TransportLink*> links_;
  std::deque<Newcomer> newcomers_;
  std::vector<transport::TransportEvent> events_;  // of Poll; kept for its memory
  bool asleep_ = false, may_sleep_ = false;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_
